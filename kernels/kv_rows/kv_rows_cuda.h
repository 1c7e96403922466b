// The CUDA kernels of kv_rows.h, and its row codec for other .cu files.
#pragma once

#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

Kernel<PackRowsArgs> CudaPackRows();
Kernel<NormRopePackArgs> CudaNormRopePack();
Kernel<UnpackRowsArgs> CudaUnpackRows();

}  // namespace lockstep::kernels
