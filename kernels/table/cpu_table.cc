#include <limits>

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention_inputs/attention_inputs_cpu.h"
#include "kernels/compressor/compressor_cpu.h"
#include "kernels/elementwise/elementwise_cpu.h"
#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/index_select/index_select_cpu.h"
#include "kernels/kv_rows/kv_rows_cpu.h"
#include "kernels/linear/linear.h"
#include "kernels/router/router_cpu.h"
#include "kernels/table/kernel_table.h"

namespace lockstep::kernels {

KernelTable MakeCpuTable(Isa isa, Profile profile) {
  KernelTable table;
  table.embed = CpuEmbed(isa);
  table.rms_norm = CpuRmsNorm(isa);
  table.rope = CpuRope(isa);
  table.norm_rope = CpuNormRope(isa);
  table.hc_mix = CpuHcMix(isa);
  table.sinkhorn = CpuSinkhorn(isa);
  table.hc_collapse_norm = CpuHcCollapseNorm(isa);
  table.hc_expand = CpuHcExpand(isa);
  table.hc_site = CpuHcSite(isa);
  table.linear = CpuLinear(isa, profile);
  table.linear_set = CpuLinearSet(isa, profile);
  table.pack_rows = CpuPackRows(isa);
  table.norm_rope_pack = CpuNormRopePack(isa);
  table.unpack_rows = CpuUnpackRows(isa);
  table.compress = CpuCompress(isa);
  table.store_history = CpuStoreHistory(isa);
  table.attention_inputs = CpuAttentionInputs(isa);
  table.index_select = CpuIndexSelect(isa, profile);
  table.attention = CpuAttention(isa, profile);
  table.router = CpuRouter(isa);
  table.pair_groups = CpuPairGroups();
  table.route = CpuRoute(isa);
  table.expert_ffn = CpuExpertFfn(isa, profile);
  table.device_job_rows = std::numeric_limits<std::int64_t>::max();
  table.combine = CpuCombine(isa);
  table.engram_gate = CpuEngramGate(isa);
  table.sample = CpuSample(isa);
  table.random_exl3 = CpuRandomExl3();
  return table;
}

}  // namespace lockstep::kernels
