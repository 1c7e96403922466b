// The CPU kernels of compressor.h for an instruction set.
#pragma once

#include "kernels/compressor/compressor.h"
#include "kernels/contract/cpu_isa.h"

namespace lockstep::kernels {

Kernel<CompressorArgs> CpuCompress(Isa isa);
Kernel<StoreHistoryArgs> CpuStoreHistory(Isa isa);

}  // namespace lockstep::kernels
