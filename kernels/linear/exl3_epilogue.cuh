// The 128-point butterfly of a warp, and an EXL3 row's way from folded sums to its output.
#pragma once

#include "kernels/device/cuda_stream.cuh"
#include "kernels/linear/exl3_cuda.h"

namespace lockstep::kernels {

// 128 values over a warp for each of some rows, element 4*lane + r in x[row][r]: butterfly with strides 1, 2, ..., 64, then times 1/sqrt(128). The rows'
// steps stand side by side, so that they wait for shuffles together.
template <int kRows>
__device__ void ButterflyWarp(float (&x)[kRows][4]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (float(&row)[4] : x) {
    const float sum[2] = {contract::Add(row[0], row[1]), contract::Add(row[2], row[3])};
    const float difference[2] = {contract::Sub(row[0], row[1]), contract::Sub(row[2], row[3])};
    row[0] = contract::Add(sum[0], sum[1]), row[1] = contract::Add(difference[0], difference[1]);
    row[2] = contract::Sub(sum[0], sum[1]), row[3] = contract::Sub(difference[0], difference[1]);
  }
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    const float sign = (lane & mask) ? -1.0f : 1.0f;  // times one is exact: a sum or a difference, rounded once
#pragma unroll
    for (float(&row)[4] : x) {
#pragma unroll
      for (float& value : row) value = contract::Fma(value, sign, __shfl_xor_sync(0xffffffffu, value, mask));
    }
  }
  constexpr float kScale = static_cast<float>(1.0 / 11.313708498984761);
#pragma unroll
  for (float(&row)[4] : x) {
#pragma unroll
    for (float& value : row) value = contract::Mul(value, kScale);
  }
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

// What a matrix does to the lane's four columns of an output after its butterfly.
struct OutputTerms {
  float4 scale;
  const float4* bias;  // null: none

  __device__ OutputTerms(const Exl3Job& job, int column) : bias(job.bias ? reinterpret_cast<const float4*>(job.bias + column) : nullptr) {
    scale = *reinterpret_cast<const float4*>(job.output_scale + column);
  }
  __device__ void Apply(float (&v)[4]) const {
    v[0] = contract::Mul(v[0], scale.x), v[1] = contract::Mul(v[1], scale.y), v[2] = contract::Mul(v[2], scale.z), v[3] = contract::Mul(v[3], scale.w);
    if (!bias) return;
    const float4 add = *bias;
    v[0] = contract::Add(v[0], add.x), v[1] = contract::Add(v[1], add.y), v[2] = contract::Add(v[2], add.z), v[3] = contract::Add(v[3], add.w);
  }
};

// Family I: from b - 510 to the format's weight. `z`: the row's folded correction.
__device__ inline void CorrectSums(float z, float (&v)[4]) {
  const float correction = contract::Mul(z, 476.0f * 0x1p-18f);
#pragma unroll
  for (float& value : v) value = contract::Fma(value, 1774.0f * 0x1p-18f, -correction);
}

// Finished columns from `column` on to the part's y.
__device__ inline void StoreRow(const Exl3Call& call, const Exl3Job& job, int part, std::int64_t row, int column, const float (&v)[4]) {
  const Exl3Part& to = call.parts[part];
  const std::int64_t at = row * to.y_stride + column;
  const int count = max(0, min(4, job.out_features - column));
  if (to.y_bf16) StoreBF16(to.y_bf16 + at, v, count);
  else StoreFP32(to.y_fp32 + at, v, count);
}

}  // namespace lockstep::kernels
