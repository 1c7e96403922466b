// The CPU kernel of attention_inputs.h for an instruction set.
#pragma once

#include "kernels/attention_inputs/attention_inputs.h"
#include "kernels/contract/cpu_isa.h"

namespace lockstep::kernels {

Kernel<AttentionInputsArgs> CpuAttentionInputs(Isa isa);

}  // namespace lockstep::kernels
