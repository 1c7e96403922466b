// Family H products of many rows, all codebooks.
#include "kernels/linear/exl3_large.cuh"

namespace lockstep::kernels {

void LaunchExl3LargeHalf(const Exl3Call& call, int tile_rows, Codebook codebook, int bits_x2, CudaStream& stream) {
  switch (codebook) {
    case Codebook::kMcg: return LaunchLargeOfRows<WeightForm::kMcg>(call, tile_rows, bits_x2, stream);
    case Codebook::k3inst: return LaunchLargeOfRows<WeightForm::k3inst>(call, tile_rows, bits_x2, stream);
    default: return LaunchLargeOfRows<WeightForm::kMul1Half>(call, tile_rows, bits_x2, stream);
  }
}

}  // namespace lockstep::kernels
