// The CUDA kernel of random_exl3.h.
#pragma once

#include "kernels/random_exl3/random_exl3.h"

namespace lockstep::kernels {

Kernel<RandomExl3Args> CudaRandomExl3();

}  // namespace lockstep::kernels
