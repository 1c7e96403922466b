// A row's norm by one warp, and the rotation of neighbouring channels. Contract: docs/numerics.md section 6, RMSNorm and RoPE.
#pragma once

#include "kernels/device/dots.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/elementwise/elementwise.h"

namespace lockstep::kernels {

// At most 128 kChunks channels, a multiple of four; a thread has four neighbouring lanes of every chunk in registers.
template <int kChunks>
struct NormRow {
  uint2 bits[kChunks];
  int n;

  __device__ static int First() { return 4 * (threadIdx.x & 31); }  // of the thread's channels in a chunk
  __device__ bool Has(int chunk) const { return kLanesF * chunk + First() < n; }

  __device__ NormRow(const std::uint16_t* x, int channels) : NormRow(reinterpret_cast<const uint2*>(x + First()), channels) {}
  // From the thread's own channels of the first chunk on.
  __device__ NormRow(const uint2* own, int channels) : n(channels) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) bits[c] = Has(c) ? own[kLanesF / 4 * c] : make_uint2(0u, 0u);
  }

  __device__ float Scale(float eps) const {
    float sum[4] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const float4 v = WidenFour(bits[c]);  // +0 past the end: a square added to +0 or more leaves it
      sum[0] = contract::Fma(v.x, v.x, sum[0]), sum[1] = contract::Fma(v.y, v.y, sum[1]);
      sum[2] = contract::Fma(v.z, v.z, sum[2]), sum[3] = contract::Fma(v.w, v.w, sum[3]);
    }
    return contract::Rsqrt(contract::Add(contract::Div(FoldQuads(sum), static_cast<float>(n)), eps));
  }
};

// bf16 of (x * r) * w of four channels.
__device__ inline uint2 ScaleFour(uint2 bits, float r, float4 w) {
  using contract::Mul;
  const float4 v = WidenFour(bits);
  return make_uint2(PackBF16(Mul(Mul(v.x, r), w.x), Mul(Mul(v.y, r), w.y)), PackBF16(Mul(Mul(v.z, r), w.z), Mul(Mul(v.w, r), w.w)));
}

// The same with the weights at `weight`; null: ones.
__device__ inline uint2 ScaleFour(uint2 bits, float r, const float* weight) {
  return ScaleFour(bits, r, weight ? *reinterpret_cast<const float4*>(weight) : make_float4(1.0f, 1.0f, 1.0f, 1.0f));
}

// One pair of channels with the cosine and sine of its angle.
__device__ inline float2 Rotate(float re, float im, float cosine, float sine) {
  using contract::Mul;
  return make_float2(contract::Sub(Mul(re, cosine), Mul(im, sine)), contract::Add(Mul(re, sine), Mul(im, cosine)));
}

// Of two pairs; `at` is the first's cosine, its sine `half` elements behind.
struct FourAngles {
  float cosine[2] = {}, sine[2] = {};
  FourAngles() = default;
  __device__ FourAngles(const float* at, int half, bool inverse) : cosine{at[0], at[1]}, sine{inverse ? -at[half] : at[half], inverse ? -at[half + 1] : at[half + 1]} {}
};

__device__ inline uint2 RotateFour(uint2 bits, const FourAngles& by) {
  const float4 v = WidenFour(bits);
  const float2 low = Rotate(v.x, v.y, by.cosine[0], by.sine[0]), high = Rotate(v.z, v.w, by.cosine[1], by.sine[1]);
  return make_uint2(PackBF16(low.x, low.y), PackBF16(high.x, high.y));
}

// The row of cosines and sines of row t.
__device__ inline const float* AnglesOf(const RopeArgs& a, std::int64_t t) { return a.table + a.positions[t] * a.rope_dim; }

// Norm of row t by a warp; with kRope, the rows are heads whose last channels turn.
template <int kChunks, bool kRope>
__device__ void NormRowOfWarp(const RmsNormArgs& a, const RopeArgs& rope, std::int64_t t) {
  using Row = NormRow<kChunks>;
  const float* angles = kRope ? AnglesOf(rope, t / rope.heads) : nullptr;
  const Row row(a.x + t * a.x_stride, static_cast<int>(a.n));
  const float r = row.Scale(a.eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!row.Has(c)) break;
    const int d = kLanesF * c + Row::First(), turning = d - (row.n - rope.rope_dim);
    uint2 y = ScaleFour(row.bits[c], r, a.weight ? a.weight + d : nullptr);
    if (kRope && turning >= 0) y = RotateFour(y, FourAngles(angles + turning / 2, rope.rope_dim / 2, rope.inverse));
    *reinterpret_cast<uint2*>(a.y + t * a.y_stride + d) = y;
  }
}

// Part i of all that turns, kPairs neighbouring pairs of a head; two where heads are 8-byte aligned.
template <int kPairs>
__device__ void TurnPart(const RopeArgs& a, std::int64_t i) {
  const int half = a.rope_dim / 2, units = half / kPairs;
  const std::int64_t head = i / units;
  if (head >= a.rows * a.heads) return;
  const int j = static_cast<int>(i - head * units) * kPairs;
  const float* cosine = AnglesOf(a, head / a.heads) + j;
  std::uint16_t* x = a.x + (head + 1) * a.width - a.rope_dim + 2 * j;
  if constexpr (kPairs == 2) {
    *reinterpret_cast<uint2*>(x) = RotateFour(*reinterpret_cast<const uint2*>(x), FourAngles(cosine, half, a.inverse));
  } else {
    const float sine = cosine[half];
    const float2 turned = Rotate(BF16Value(x[0]), BF16Value(x[1]), cosine[0], a.inverse ? -sine : sine);
    x[0] = BF16Bits(turned.x), x[1] = BF16Bits(turned.y);
  }
}

}  // namespace lockstep::kernels
