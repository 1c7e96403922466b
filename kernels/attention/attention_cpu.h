// The CPU kernel of attention.h for an instruction set and profile.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/contract/cpu_isa.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

Kernel<AttentionArgs> CpuAttention(Isa isa, Profile profile);

}  // namespace lockstep::kernels
