// Family H products of many rows, all codebooks.
#include "kernels/linear/exl3_large.cuh"

namespace lockstep::kernels {
namespace {

template <WeightForm kWeight>
void Launch(const Exl3Call& call, int slots, int bits_x2, CudaStream& stream) {
  if (slots == 64) LaunchLargeOfRate<64, kWeight, 1>(call, bits_x2, stream);
  else LaunchLargeOfRate<128, kWeight, 1>(call, bits_x2, stream);
}

}  // namespace

void LaunchExl3LargeHalf(const Exl3Call& call, int slots, Codebook codebook, int bits_x2, CudaStream& stream) {
  switch (codebook) {
    case Codebook::kMcg: return Launch<WeightForm::kMcg>(call, slots, bits_x2, stream);
    case Codebook::k3inst: return Launch<WeightForm::k3inst>(call, slots, bits_x2, stream);
    default: return Launch<WeightForm::kMul1Half>(call, slots, bits_x2, stream);
  }
}

}  // namespace lockstep::kernels
