// Family I products of many rows.
#include "kernels/linear/exl3_large.cuh"

namespace lockstep::kernels {

void LaunchExl3LargeInteger(const Exl3Call& call, int slots, int bits_x2, CudaStream& stream) {
  constexpr WeightForm kWeight = WeightForm::kMul1Integer;
  if (call.terms() == 2) {
    if (slots == 64) LaunchLargeOfRate<64, kWeight, 2>(call, bits_x2, stream);
    else LaunchLargeOfRate<128, kWeight, 2>(call, bits_x2, stream);
  } else {
    if (slots == 64) LaunchLargeOfRate<64, kWeight, 1>(call, bits_x2, stream);
    else LaunchLargeOfRate<128, kWeight, 1>(call, bits_x2, stream);
  }
}

}  // namespace lockstep::kernels
