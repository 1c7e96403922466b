// The CUDA kernel of index_select.h. Profile sm90; FP4 keys: at most 64 heads of 128 channels; BF16 keys: at most 128 heads.
#pragma once

#include "kernels/index_select/index_select.h"

namespace lockstep::kernels {

Kernel<IndexSelectArgs> CudaIndexSelect();

}  // namespace lockstep::kernels
