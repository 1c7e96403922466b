// The CPU kernels of kv_rows.h for an instruction set. Rows of at most 2048 channels.
#pragma once

#include "kernels/contract/cpu_isa.h"
#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

Kernel<PackRowsArgs> CpuPackRows(Isa isa);
Kernel<NormRopePackArgs> CpuNormRopePack(Isa isa);
Kernel<UnpackRowsArgs> CpuUnpackRows(Isa isa);

}  // namespace lockstep::kernels
