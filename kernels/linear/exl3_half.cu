// Family H products: all codebooks as the format's fp16 weights.
#include "kernels/linear/exl3_cuda.cuh"

namespace lockstep::kernels {

void LaunchHalfProduct(const Exl3Call& call, Codebook codebook, int bits_x2, cudaStream_t stream) {
  switch (codebook) {
    case Codebook::kMcg:
      return LaunchForBits<WeightForm::kMcg, false>(call, bits_x2, stream);
    case Codebook::k3inst:
      return LaunchForBits<WeightForm::k3inst, false>(call, bits_x2, stream);
    case Codebook::kMul1:
      return LaunchForBits<WeightForm::kMul1Half, false>(call, bits_x2, stream);
  }
}

}  // namespace lockstep::kernels
