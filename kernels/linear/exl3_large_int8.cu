// Family I products of many rows of int8 codes.
#include "kernels/linear/exl3_large.cuh"

namespace lockstep::kernels {

void LaunchExl3LargeInt8(const Exl3Call& call, int tile_rows, int bits_x2, CudaStream& stream) {
  LaunchLargeOfRows<WeightForm::kMul1Integer>(call, tile_rows, bits_x2, stream);
}

}  // namespace lockstep::kernels
