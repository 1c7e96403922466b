// Family F dots F(w, x) of many rows x (bf16) with many rows w (fp32): what hyper-connections and the router multiply. A lane of the contract is a
// thread, or four neighbouring lanes are. Contract: docs/numerics.md section 2.
#pragma once

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

struct DotRows {
  const std::uint16_t* x;  // [rows][n]
  std::int64_t rows;
  const float* w;  // [outputs][n]
  int outputs;
  std::int64_t n;
};

// One thread's share of a tile: lane `lane` of kRows x kOutputs dots, and of the rows' dots with themselves. Rows and outputs past the end repeat the last.
template <int kRows, int kOutputs, int kAhead>
struct LaneTile {
  float sum[kOutputs][kRows];

  template <class Self>
  __device__ void Accumulate(const DotRows& d, std::int64_t row0, int output0, int lane, const Self& self) {
    // 32-bit offsets from a base of the tile: a register a row instead of two.
    const std::uint16_t* x = d.x + row0 * d.n;
    const float* w = d.w + min(output0, d.outputs - 1) * d.n;
    const auto n = static_cast<unsigned>(d.n), last_row = static_cast<unsigned>(min(d.rows - 1 - row0, std::int64_t{kRows - 1}));
    const auto last_output = static_cast<unsigned>(max(0, min(d.outputs - 1 - output0, kOutputs - 1)));
    unsigned row_at[kRows], output_at[kOutputs];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) row_at[r] = min(r, last_row) * n;
#pragma unroll
    for (unsigned o = 0; o < kOutputs; ++o) {
      output_at[o] = min(o, last_output) * n;
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[o][r] = 0.0f;
    }
    unsigned k = static_cast<unsigned>(lane);
    for (; k + (kAhead - 1) * kLanesF < n; k += kAhead * kLanesF) Steps<kAhead>(x, w, row_at, output_at, k, self);
    for (; k < n; k += kLanesF) Steps<1>(x, w, row_at, output_at, k, self);
  }

 private:
  template <int kSteps, class Self>
  __device__ void Steps(const std::uint16_t* x, const float* w, const unsigned (&row_at)[kRows], const unsigned (&output_at)[kOutputs], unsigned k,
                        const Self& self) {
    std::uint16_t bits[kSteps][kRows];
    float weight[kSteps][kOutputs];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) bits[i][r] = x[row_at[r] + k + i * kLanesF];
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) weight[i][o] = __ldg(w + (output_at[o] + k + i * kLanesF));
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float value[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) value[r] = BF16Value(bits[i][r]);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum[o][r] = contract::Fma(weight[i][o], value[r], sum[o][r]);
      }
      self(value);
    }
  }
};

// fold of 128 lanes that lie in memory, by a warp.
__device__ inline float FoldLanes(const float* lanes) {
  const int i = threadIdx.x & 31;
  const float low = contract::Add(lanes[i], lanes[i + 64]), high = contract::Add(lanes[i + 32], lanes[i + 96]);
  return FoldWarp(contract::Add(low, high));
}

// fold of the 128 lanes of a warp whose threads have four neighbouring ones each; every thread gets the result.
__device__ inline float FoldQuads(float (&x)[4]) {
#pragma unroll
  for (int stride = 16; stride > 0; stride /= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = contract::Add(x[i], __shfl_xor_sync(0xffffffffu, x[i], stride));
  }
  return contract::Add(contract::Add(x[0], x[2]), contract::Add(x[1], x[3]));
}

__device__ inline float4 WidenFour(uint2 bits) {
  return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u), __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
}

}  // namespace lockstep::kernels
