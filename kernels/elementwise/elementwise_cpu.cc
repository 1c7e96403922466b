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
LOCKSTEP_ROWS_KERNEL(Sinkhorn, "sinkhorn/F")
LOCKSTEP_ROWS_KERNEL(HcCollapseNorm, "hc_collapse_norm/F")
LOCKSTEP_ROWS_KERNEL(HcExpand, "hc_expand/F")
LOCKSTEP_ROWS_KERNEL(Combine, "combine/F")
LOCKSTEP_ROWS_KERNEL(EngramGate, "engram_gate/F")
#undef LOCKSTEP_ROWS_KERNEL

namespace {

template <Isa isa>
void RunNormRope(Stream& stream, const NormRopeArgs& a) {
  CpuRmsNorm(isa)(stream, a.norm);
  CpuRope(isa)(stream, a.rope);
}

template <Isa isa>
void RunHcSite(Stream& stream, const HcSiteArgs& a) {
  if (a.sum.rows > 0) CpuCombine(isa)(stream, a.sum);
  if (a.leave.f_TE) CpuHcExpand(isa)(stream, a.leave);
  CpuHcMix(isa)(stream, a.mix);
  CpuHcCollapseNorm(isa)(stream, a.collapse);
}

}  // namespace

#define LOCKSTEP_SEQUENCE_KERNEL(name, contract)                                                                             \
  Kernel<name##Args> Cpu##name(Isa isa) {                                                                                    \
    return {ForIsa(isa, &Run##name<Isa::kGeneric>, &Run##name<Isa::kAvx2>, &Run##name<Isa::kAvx512>), contract};              \
  }
LOCKSTEP_SEQUENCE_KERNEL(NormRope, "norm_rope/F")
LOCKSTEP_SEQUENCE_KERNEL(HcSite, "hc_site/F")
#undef LOCKSTEP_SEQUENCE_KERNEL

}  // namespace lockstep::kernels
