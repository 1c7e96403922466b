// Family I products of few rows.
#include "kernels/linear/exl3_small.cuh"

namespace lockstep::kernels {
namespace {

template <int kTerms>
__global__ void __launch_bounds__(32 * kSmallWarps, kSmallBlocks) Exl3SmallIntegerKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  SmallBlock<true>(call, first_tile, SmallProductOfRate<IntegerSums<kTerms>>);
}

}  // namespace

void LaunchExl3SmallInteger(const Exl3Call& call, int max_bits_x2, CudaStream& stream) {
  const std::int64_t blocks = MaxSegmentBlocks(call.in);
  if (call.terms() == 2) LaunchSmall(Exl3SmallIntegerKernel<2>, call, CodeRowBytes<Exl3Form::kInt16>(blocks), max_bits_x2, stream);
  else LaunchSmall(Exl3SmallIntegerKernel<1>, call, CodeRowBytes<Exl3Form::kInt8>(blocks), max_bits_x2, stream);
}

}  // namespace lockstep::kernels
