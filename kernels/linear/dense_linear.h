// A BF16 linear as the kernels that multiply by it have it.
#pragma once

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

struct DenseLinear {
  const std::uint16_t* w = nullptr;  // [out][in]
  const std::uint16_t* x = nullptr;  // [rows][x_stride]
  std::int64_t x_stride = 0, rows = 0, y_stride = 0;
  std::uint16_t* y_bf16 = nullptr;  // exactly one of these
  float* y_fp32 = nullptr;
  int out = 0, in = 0;

#if defined(__CUDACC__)
  __device__ void Store(std::int64_t row, int column, float value) const {
    if (row >= rows || column >= out) return;
    if (y_bf16) y_bf16[row * y_stride + column] = BF16Bits(value);
    else y_fp32[row * y_stride + column] = value;
  }
#endif
};

}  // namespace lockstep::kernels
