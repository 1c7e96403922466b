// The CUDA kernel of sampling.h.
#pragma once

#include "kernels/sampling/sampling.h"

namespace lockstep::kernels {

Kernel<SampleArgs> CudaSample();

}  // namespace lockstep::kernels
