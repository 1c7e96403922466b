// The CUDA kernel of router.h.
#pragma once

#include "kernels/router/router.h"

namespace lockstep::kernels {

Kernel<RouterArgs> CudaRouter();
Kernel<RouteArgs> CudaRoute();

}  // namespace lockstep::kernels
