// The CUDA kernel of expert_ffn.h. Profile sm90.
#pragma once

#include "kernels/expert_ffn/expert_ffn.h"

namespace lockstep::kernels {

Kernel<ExpertFfnArgs> CudaExpertFfn();

}  // namespace lockstep::kernels
