// One pointer per operation: what a device runs. Filled by the backend for its instruction set or architecture and one profile; every
// entry carries its contract id, and all entries of one table belong to one profile.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention_inputs/attention_inputs.h"
#include "kernels/compressor/compressor.h"
#include "kernels/contract/cpu_isa.h"
#include "kernels/device/stream.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/index_select/index_select.h"
#include "kernels/kv_rows/kv_rows.h"
#include "kernels/linear/linear.h"
#include "kernels/pair_groups/pair_groups.h"
#include "kernels/random_exl3/random_exl3.h"
#include "kernels/router/router.h"
#include "kernels/sampling/sampling.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

struct KernelTable {
  Kernel<EmbedArgs> embed;
  Kernel<RmsNormArgs> rms_norm;
  Kernel<RopeArgs> rope;
  Kernel<NormRopeArgs> norm_rope;
  Kernel<HcMixArgs> hc_mix;
  Kernel<SinkhornArgs> sinkhorn;
  Kernel<HcCollapseNormArgs> hc_collapse_norm;
  Kernel<HcExpandArgs> hc_expand;
  Kernel<HcSiteArgs> hc_site;
  Kernel<LinearArgs> linear;
  Kernel<LinearSetArgs> linear_set;
  Kernel<PackRowsArgs> pack_rows;
  Kernel<NormRopePackArgs> norm_rope_pack;
  Kernel<UnpackRowsArgs> unpack_rows;
  Kernel<CompressorArgs> compress;
  Kernel<StoreHistoryArgs> store_history;
  Kernel<AttentionInputsArgs> attention_inputs;
  Kernel<IndexSelectArgs> index_select;
  Kernel<AttentionArgs> attention;
  Kernel<RouterArgs> router;
  Kernel<PairGroupsArgs> pair_groups;
  Kernel<RouteArgs> route;
  Kernel<ExpertFfnArgs> expert_ffn;
  // Most rows of a step whose experts had better take jobs that the device made (ExpertFfnArgs::table), if all their matrices are EXL3.
  std::int64_t device_job_rows = 0;
  Kernel<CombineArgs> combine;
  Kernel<EngramGateArgs> engram_gate;
  Kernel<SampleArgs> sample;
  Kernel<RandomExl3Args> random_exl3;
};

// The CPU implementations for an instruction set. Contract ids are the same for every `isa`.
KernelTable MakeCpuTable(Isa isa, Profile profile);

}  // namespace lockstep::kernels
