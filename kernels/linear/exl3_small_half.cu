// Family H products of few rows, all codebooks.
#include "kernels/linear/exl3_small.cuh"

namespace lockstep::kernels {
namespace {

__device__ void ProductOfCodebook(const Exl3Call& call, const SmallPlace& place, float* partial, float* z) {
  switch (place.job.codebook) {
    case Codebook::kMcg: return SmallProduct<HalfSums<WeightForm::kMcg>>(call, place, partial, z);
    case Codebook::k3inst: return SmallProduct<HalfSums<WeightForm::k3inst>>(call, place, partial, z);
    default: return SmallProduct<HalfSums<WeightForm::kMul1Half>>(call, place, partial, z);
  }
}

__global__ void __launch_bounds__(kMaxSmallThreads) Exl3SmallHalfKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  SmallBlock<Exl3Form::kHalf>(call, first_tile, ProductOfCodebook);
}

}  // namespace

void LaunchExl3SmallHalf(const Exl3Call& call, int max_bits_x2, CudaStream& stream) {
  LaunchSmall<Exl3Form::kHalf>(Exl3SmallHalfKernel, call, max_bits_x2, stream);
}

}  // namespace lockstep::kernels
