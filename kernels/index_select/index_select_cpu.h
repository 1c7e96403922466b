// The CPU kernel of index_select.h for an instruction set and profile. Index heads of at most 512 channels, at most 128 heads.
#pragma once

#include "kernels/contract/cpu_isa.h"
#include "kernels/index_select/index_select.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

Kernel<IndexSelectArgs> CpuIndexSelect(Isa isa, Profile profile);

}  // namespace lockstep::kernels
