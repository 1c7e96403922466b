// BF16 linears of ordinary shapes on the device: compressor projections, weights_proj, heads of unquantized checkpoints.
#pragma once

#include <optional>
#include <vector>

#include "kernels/linear/dense_linear.h"
#include "kernels/linear/linear.h"

namespace lockstep::kernels {

class CudaStream;

// y = W x, contract docs/numerics.md section 3. False, and nothing done, for a shape that it does not take: other weights than BF16, inputs that
// are not whole 128-channel blocks or not 16-byte aligned.
bool RunDenseBf16(CudaStream& stream, const LinearArgs& args);

// The linear as a launch of EXL3 ones can take it along (dense_beside.cuh); none if it has more than eight rows or a shape that RunDenseBf16 does not take.
std::optional<DenseLinear> FewRowsDense(const LinearArgs& args);
// By itself.
void LaunchFewRowsDense(CudaStream& stream, const DenseLinear& linear);

// The same for linears of one input and many rows, in one launch.
class DenseBf16Set {
 public:
  // False for a shape that the set does not take, or that does not go with the linears that it has. The arguments stay where they are until Run.
  bool Add(CudaStream& stream, const LinearArgs& args);
  void Run(CudaStream& stream) const;

 private:
  std::vector<const LinearArgs*> linears_;
};

}  // namespace lockstep::kernels
