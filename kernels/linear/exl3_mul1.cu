// Family I products: mul1 weights as exact integers.
#include "kernels/linear/exl3_cuda.cuh"

namespace lockstep::kernels {

void LaunchMul1Product(const Exl3Call& call, int bits_x2, cudaStream_t stream) {
  if (call.act_limit > 127) return LaunchForBits<WeightForm::kMul1Integer, true>(call, bits_x2, stream);
  LaunchForBits<WeightForm::kMul1Integer, false>(call, bits_x2, stream);
}

}  // namespace lockstep::kernels
