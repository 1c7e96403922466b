// The CUDA kernels of elementwise.h.
#pragma once

#include "kernels/elementwise/elementwise.h"

namespace lockstep::kernels {

Kernel<EmbedArgs> CudaEmbed();
Kernel<RmsNormArgs> CudaRmsNorm();
Kernel<RopeArgs> CudaRope();
Kernel<NormRopeArgs> CudaNormRope();
Kernel<HcMixArgs> CudaHcMix();
Kernel<SinkhornArgs> CudaSinkhorn();
Kernel<HcCollapseNormArgs> CudaHcCollapseNorm();
Kernel<HcExpandArgs> CudaHcExpand();
Kernel<HcSiteArgs> CudaHcSite();
Kernel<CombineArgs> CudaCombine();
Kernel<EngramGateArgs> CudaEngramGate();

}  // namespace lockstep::kernels
