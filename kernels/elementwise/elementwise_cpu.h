// The CPU kernels of elementwise.h for an instruction set.
#pragma once

#include "kernels/contract/cpu_isa.h"
#include "kernels/elementwise/elementwise.h"

namespace lockstep::kernels {

Kernel<EmbedArgs> CpuEmbed(Isa isa);
Kernel<RmsNormArgs> CpuRmsNorm(Isa isa);
Kernel<RopeArgs> CpuRope(Isa isa);
Kernel<NormRopeArgs> CpuNormRope(Isa isa);
Kernel<HcMixArgs> CpuHcMix(Isa isa);
Kernel<SinkhornArgs> CpuSinkhorn(Isa isa);
Kernel<HcCollapseNormArgs> CpuHcCollapseNorm(Isa isa);
Kernel<HcExpandArgs> CpuHcExpand(Isa isa);
Kernel<HcSiteArgs> CpuHcSite(Isa isa);
Kernel<CombineArgs> CpuCombine(Isa isa);
Kernel<EngramGateArgs> CpuEngramGate(Isa isa);

}  // namespace lockstep::kernels
