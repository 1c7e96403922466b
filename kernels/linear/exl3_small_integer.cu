// Family I products of few rows.
#include "kernels/linear/exl3_small.cuh"

namespace lockstep::kernels {
namespace {

template <int kTerms>
__global__ void __launch_bounds__(kMaxSmallThreads) Exl3SmallIntegerKernel(const __grid_constant__ Exl3Call call) {
  SmallBlock<IntegerSums<kTerms>, false>(call);
}
template <int kTerms>
__global__ void __launch_bounds__(kSmallThreads, kBlocksAtOnce) Exl3ExpertsIntegerKernel(const __grid_constant__ Exl3Call call) {
  SmallBlock<IntegerSums<kTerms>, true>(call);
}

}  // namespace

void LaunchExl3SmallInteger(const Exl3Call& call, int ring_bytes, CudaStream& stream) {
  if (call.terms() == 2) LaunchSmall<Exl3Form::kInt16>(Exl3SmallIntegerKernel<2>, Exl3ExpertsIntegerKernel<2>, call, ring_bytes, stream);
  else LaunchSmall<Exl3Form::kInt8>(Exl3SmallIntegerKernel<1>, Exl3ExpertsIntegerKernel<1>, call, ring_bytes, stream);
}

}  // namespace lockstep::kernels
