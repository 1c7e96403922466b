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
    const float sign = (lane & mask) ? -1.0f : 1.0f;  // times one is exact: a sum or a difference, rounded once
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = contract::Fma(x[r], sign, __shfl_xor_sync(0xffffffffu, x[r], mask));
  }
  constexpr float kScale = static_cast<float>(1.0 / 11.313708498984761);
#pragma unroll
  for (int r = 0; r < 4; ++r) x[r] = contract::Mul(x[r], kScale);
}

// The first `count` of four values to y, in one store where all are wanted and y is aligned.
__device__ inline void StoreBF16(std::uint16_t* y, const float (&v)[4], int count) {
  if (count == 4 && reinterpret_cast<std::uintptr_t>(y) % 8 == 0) {
    const auto pair = [](float low, float high) { return BF16Bits(low) | static_cast<std::uint32_t>(BF16Bits(high)) << 16; };
    *reinterpret_cast<uint2*>(y) = make_uint2(pair(v[0], v[1]), pair(v[2], v[3]));
    return;
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (r < count) y[r] = BF16Bits(v[r]);
  }
}

__device__ inline void StoreFP32(float* y, const float (&v)[4], int count) {
  if (count == 4 && reinterpret_cast<std::uintptr_t>(y) % 16 == 0) {
    *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
    return;
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (r < count) y[r] = v[r];
  }
}

// One row's 128 columns by one warp: v[r] goes from the folded sum of column `first + 4*lane + r` to its value. `z`: the row's correction (family I).
template <bool kInteger>
__device__ void FinishValues(const Exl3Job& job, std::int64_t first, float z, float (&v)[4]) {
  if constexpr (kInteger) {
#pragma unroll
    for (float& value : v) value = contract::Fma(value, 1774.0f * 0x1p-18f, -z);
  }
  ButterflyWarp(v);
  const std::int64_t column = first + 4 * (threadIdx.x & 31);
  const auto four = [column](const float* values) { return *reinterpret_cast<const float4*>(values + column); };
  const float4 scale = four(job.output_scale);
  v[0] = contract::Mul(v[0], scale.x), v[1] = contract::Mul(v[1], scale.y), v[2] = contract::Mul(v[2], scale.z), v[3] = contract::Mul(v[3], scale.w);
  if (job.bias) {
    const float4 bias = four(job.bias);
    v[0] = contract::Add(v[0], bias.x), v[1] = contract::Add(v[1], bias.y), v[2] = contract::Add(v[2], bias.z), v[3] = contract::Add(v[3], bias.w);
  }
}

// Finished columns to the part's y.
__device__ inline void StoreRow(const Exl3Call& call, const Exl3Job& job, int part, std::int64_t row, std::int64_t first, const float (&v)[4]) {
  const Exl3Part& to = call.parts[part];
  const std::int64_t column = first + 4 * (threadIdx.x & 31), at = row * to.y_stride + column;
  const int count = static_cast<int>(max(std::int64_t{0}, min(std::int64_t{4}, job.out_features - column)));
  if (to.y_bf16) StoreBF16(to.y_bf16 + at, v, count);
  else StoreFP32(to.y_fp32 + at, v, count);
}

template <bool kInteger>
__device__ void FinishRow(const Exl3Call& call, const Exl3Job& job, int part, std::int64_t row, std::int64_t first, float z, float (&v)[4]) {
  FinishValues<kInteger>(job, first, z, v);
  StoreRow(call, job, part, row, first, v);
}

}  // namespace lockstep::kernels
