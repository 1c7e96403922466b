// Family H products of few rows, all codebooks.
#include "kernels/linear/exl3_small.cuh"

namespace lockstep::kernels {
namespace {

__global__ void __launch_bounds__(kMaxSmallThreads) Exl3SmallHalfKernel(const __grid_constant__ Exl3Call call) {
  SmallBlock<HalfSums, false>(call);
}
__global__ void __launch_bounds__(kSmallThreads, kBlocksAtOnce) Exl3ExpertsHalfKernel(const __grid_constant__ Exl3Call call) {
  SmallBlock<HalfSums, true>(call);
}

}  // namespace

void LaunchExl3SmallHalf(const Exl3Call& call, int ring_bytes, CudaStream& stream) {
  LaunchSmall<Exl3Form::kHalf>(Exl3SmallHalfKernel, Exl3ExpertsHalfKernel, call, ring_bytes, stream);
}

}  // namespace lockstep::kernels
