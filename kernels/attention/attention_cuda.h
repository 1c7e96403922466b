// The CUDA kernel of attention.h. Profile sm90; head_dim at most 512.
#pragma once

#include "kernels/attention/attention.h"

namespace lockstep::kernels {

Kernel<AttentionArgs> CudaAttention();

}  // namespace lockstep::kernels
