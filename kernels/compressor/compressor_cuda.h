// The CUDA kernels of compressor.h.
#pragma once

#include "kernels/compressor/compressor.h"

namespace lockstep::kernels {

Kernel<CompressorArgs> CudaCompress();
Kernel<StoreHistoryArgs> CudaStoreHistory();

}  // namespace lockstep::kernels
