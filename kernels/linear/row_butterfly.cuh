// The 128-point butterfly where rows are many: eight lanes a row, lane l of the eight with elements 16l .. 16l+15, four rows a warp.
#pragma once

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

class RowButterfly {
 public:
  static constexpr int kLanes = 8, kValues = 16, kRows = 4;  // lanes a row, values a lane, rows a warp

  __device__ RowButterfly() {
#pragma unroll
    for (int i = 0; i < 3; ++i) sign_[i] = threadIdx.x >> i & 1 ? -1.0f : 1.0f;
  }

  static __device__ int LaneOfRow() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ int RowOfWarp() { return static_cast<int>(threadIdx.x) % 32 / kLanes; }

  // Strides 1, 2, ..., 64, then times 1/sqrt(128). All lanes of the warp.
  __device__ void Transform(float (&v)[kValues]) const {
#pragma unroll
    for (int stride = 1; stride < kValues; stride *= 2) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if (i & stride) continue;
        const float a = v[i], b = v[i + stride];
        v[i] = contract::Add(a, b);
        v[i + stride] = contract::Sub(a, b);
      }
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
#pragma unroll
      for (float& value : v) value = contract::Fma(value, sign_[i], __shfl_xor_sync(0xffffffffu, value, 1 << i));  // a product by a sign is exact
    }
    constexpr float kScale = static_cast<float>(1.0 / 11.313708498984761);
#pragma unroll
    for (float& value : v) value = contract::Mul(value, kScale);
  }

 private:
  float sign_[3];
};

}  // namespace lockstep::kernels
