#include "kernels/elementwise/elementwise_cpu.h"

#include "kernels/device/cpu_rows.h"
#include "kernels/elementwise/elementwise_rows.h"

namespace lockstep::kernels {

#define LOCKSTEP_ROWS_KERNEL(name, contract)                                                        \
  Kernel<name##Args> Cpu##name(Isa isa) {                                                           \
    return RowsKernel<name##Args, generic::name##Rows, avx2::name##Rows, avx512::name##Rows>(isa, contract); \
  }
LOCKSTEP_ROWS_KERNEL(Embed, "embed/F")
LOCKSTEP_ROWS_KERNEL(RmsNorm, "rms_norm/F")
LOCKSTEP_ROWS_KERNEL(Rope, "rope/F")
LOCKSTEP_ROWS_KERNEL(HcMix, "hc_mix/F")
LOCKSTEP_ROWS_KERNEL(HcCollapseNorm, "hc_collapse_norm/F")
LOCKSTEP_ROWS_KERNEL(HcExpand, "hc_expand/F")
LOCKSTEP_ROWS_KERNEL(Combine, "combine/F")
LOCKSTEP_ROWS_KERNEL(EngramGate, "engram_gate/F")
LOCKSTEP_ROWS_KERNEL(Argmax, "argmax/F")
#undef LOCKSTEP_ROWS_KERNEL

namespace {

template <RowsFunction<HcSiteArgs> rows>
void RunHcSite(Stream& stream, const HcSiteArgs& args) {
  AsCpu(stream).ParallelFor(args.mix.rows, 1, [&args](std::int64_t begin, std::int64_t end, int) { rows(args, begin, end); });
}

}  // namespace

Kernel<HcSiteArgs> CpuHcSite(Isa isa) {
  return {ForIsa(isa, &RunHcSite<generic::HcSiteRows>, &RunHcSite<avx2::HcSiteRows>, &RunHcSite<avx512::HcSiteRows>), "hc_site/F"};
}

}  // namespace lockstep::kernels
