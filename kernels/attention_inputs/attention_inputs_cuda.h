// The CUDA kernel of attention_inputs.h.
#pragma once

#include "kernels/attention_inputs/attention_inputs.h"

namespace lockstep::kernels {

Kernel<AttentionInputsArgs> CudaAttentionInputs();

}  // namespace lockstep::kernels
