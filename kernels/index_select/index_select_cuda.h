// The CUDA kernel of index_select.h. Profile sm90; at most 128 heads of at most 512 channels.
#pragma once

#include "kernels/index_select/index_select.h"

namespace lockstep::kernels {

Kernel<IndexSelectArgs> CudaIndexSelect();

}  // namespace lockstep::kernels
