// BF16 linears of ordinary shapes on the device: compressor projections, weights_proj, heads of unquantized checkpoints.
#pragma once

#include "kernels/linear/linear.h"

namespace lockstep::kernels {

class CudaStream;

// y = W x, contract docs/numerics.md section 3. False, and nothing done, for a shape that it does not take: other weights than BF16, inputs that
// are not whole 128-channel blocks or not 16-byte aligned.
bool RunDenseBf16(CudaStream& stream, const LinearArgs& args);

}  // namespace lockstep::kernels
