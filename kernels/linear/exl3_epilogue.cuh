// The 128-point butterfly of a warp, and an EXL3 row's way from folded sums to its output.
#pragma once

#include "kernels/device/cuda_stream.cuh"
#include "kernels/linear/exl3_cuda.h"

namespace lockstep::kernels {

// 128 values over a warp, element 4*lane + r in x[r]: butterfly with strides 1, 2, ..., 64, then times 1/sqrt(128).
__device__ inline void ButterflyWarp(float (&x)[4]) {
  const auto swap = [&](int i, int j) {
    const float a = x[i], b = x[j];
    x[i] = contract::Add(a, b);
    x[j] = contract::Sub(a, b);
  };
  swap(0, 1), swap(2, 3);
  swap(0, 2), swap(1, 3);
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float other = __shfl_xor_sync(0xffffffffu, x[r], mask);
      x[r] = (lane & mask) ? contract::Sub(other, x[r]) : contract::Add(x[r], other);
    }
  }
  constexpr float kScale = static_cast<float>(1.0 / 11.313708498984761);
#pragma unroll
  for (int r = 0; r < 4; ++r) x[r] = contract::Mul(x[r], kScale);
}

// One row's 128 columns by one warp: v[r] holds the folded sum of column `first + 4*lane + r`. `z`: the row's correction (family I).
template <bool kInteger>
__device__ void FinishRow(const Exl3Call& call, const Exl3Job& job, int part, std::int64_t row, std::int64_t first, float z, float (&v)[4]) {
  if constexpr (kInteger) {
#pragma unroll
    for (float& value : v) value = contract::Fma(value, 1774.0f * 0x1p-18f, -z);
  }
  ButterflyWarp(v);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const std::int64_t column = first + 4 * (threadIdx.x & 31) + r;
    if (column >= call.out_features) continue;
    float value = contract::Mul(v[r], job.output_scale[column]);
    if (job.bias) value = contract::Add(value, job.bias[column]);
    const std::int64_t at = part * call.y_part + row * call.y_stride + column;
    if (call.y_bf16) call.y_bf16[at] = BF16Bits(value);
    else call.y_fp32[at] = value;
  }
}

}  // namespace lockstep::kernels
