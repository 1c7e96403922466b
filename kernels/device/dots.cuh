// Family F dots F(w, x) of many rows x (bf16) with many rows w (fp32): what hyper-connections and the router multiply. A lane of the contract is a
// thread, or four neighbouring lanes are. Contract: docs/numerics.md section 2.
#pragma once

#include "kernels/device/cuda_stream.cuh"
#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

struct DotRows {
  const std::uint16_t* x;  // [rows][n]
  std::int64_t rows;
  const float* w;  // [outputs][n]
  int outputs;
  std::int64_t n;
};

// A tile of 16 rows and 24 outputs, kLanes of the 128 lanes; a thread has one lane of 16 rows and six outputs. Operands of the next steps of 128
// channels are on their way to shared memory while these are multiplied. Rows and outputs past the end repeat the last.
template <int kLanes, int kSteps>
struct DotTile {
  static constexpr int kRows = 16, kGroups = 4, kGroupOutputs = 6, kOutputs = kGroups * kGroupOutputs;
  static constexpr int kThreads = kLanes * kGroups, kStages = 4;
  static constexpr int kSelfRows = kRows / kGroups;  // of a group, whose dots with themselves it takes

  struct Shared {
    float w[kStages][kSteps][kOutputs][kLanes];
    std::uint16_t x[kStages][kSteps][kRows][kLanes];
  };

  const DotRows& d;
  Shared& s;
  const std::int64_t row0;
  const int output0, lane0, steps;
  const bool whole;  // rows of whole 128 channels, aligned: copied 16 bytes at a time
  float sum[kGroupOutputs][kRows] = {};
  float self[kSelfRows] = {};

  __device__ DotTile(const DotRows& dots, Shared& shared, std::int64_t first_row, int first_output, int first_lane)
      : d(dots), s(shared), row0(first_row), output0(first_output), lane0(first_lane), steps(static_cast<int>((dots.n + kLanesF - 1) / kLanesF)),
        whole(dots.n % kLanesF == 0 && reinterpret_cast<std::uintptr_t>(dots.x) % 16 == 0 && reinterpret_cast<std::uintptr_t>(dots.w) % 16 == 0) {}

  __device__ static int Group() { return threadIdx.x / kLanes; }
  __device__ static int Lane() { return threadIdx.x % kLanes; }

  template <bool kSelf>
  __device__ void Run() {
    const int stages = (steps + kSteps - 1) / kSteps;
    for (int i = 0; i < kStages - 1; ++i) Fetch(i, stages);
    for (int i = 0; i < stages; ++i) {
      WaitForCopies<kStages - 2>();
      __syncthreads();
      Fetch(i + kStages - 1, stages);
      Multiply<kSelf>(i);
    }
  }

 private:
  __device__ const float* W(int o, int k) const { return d.w + min(output0 + o, d.outputs - 1) * d.n + k; }
  __device__ const std::uint16_t* X(int r, int k) const { return d.x + min(row0 + r, d.rows - 1) * d.n + k; }

  __device__ void Fetch(int i, int stages) {
    if (i < stages) {
      if (whole) FetchWhole(i);
      else FetchAny(i);
    }
    CommitCopies();
  }

  __device__ void FetchWhole(int i) {
    constexpr int kWUnits = kLanes / 4, kXUnits = kLanes / 8;
    const int stage = i % kStages;
#pragma unroll
    for (int first = 0; first < kSteps * kOutputs * kWUnits; first += kThreads) {
      const int u = first + threadIdx.x, j = u / (kOutputs * kWUnits), o = u / kWUnits % kOutputs, lane = u % kWUnits * 4;
      if (u < kSteps * kOutputs * kWUnits && i * kSteps + j < steps) CopyAsync<16>(&s.w[stage][j][o][lane], W(o, (i * kSteps + j) * kLanesF + lane0 + lane));
    }
#pragma unroll
    for (int first = 0; first < kSteps * kRows * kXUnits; first += kThreads) {
      const int u = first + threadIdx.x, j = u / (kRows * kXUnits), r = u / kXUnits % kRows, lane = u % kXUnits * 8;
      if (u < kSteps * kRows * kXUnits && i * kSteps + j < steps) CopyAsync<16>(&s.x[stage][j][r][lane], X(r, (i * kSteps + j) * kLanesF + lane0 + lane));
    }
  }

  __device__ void FetchAny(int i) {
    const int stage = i % kStages;
    for (int j = 0; j < kSteps; ++j) {
      const int k0 = (i * kSteps + j) * kLanesF + lane0;
      for (int u = threadIdx.x; u < kOutputs * kLanes; u += kThreads) {
        if (k0 + u % kLanes < d.n) s.w[stage][j][u / kLanes][u % kLanes] = *W(u / kLanes, k0 + u % kLanes);
      }
      for (int u = threadIdx.x; u < kRows * kLanes; u += kThreads) {
        if (k0 + u % kLanes < d.n) s.x[stage][j][u / kLanes][u % kLanes] = *X(u / kLanes, k0 + u % kLanes);
      }
    }
  }

  template <bool kSelf>
  __device__ void Multiply(int i) {
    const int stage = i % kStages, lane = Lane(), group = Group();
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      if ((i * kSteps + j) * kLanesF + lane0 + lane >= d.n) break;
      float weight[kGroupOutputs];
#pragma unroll
      for (int o = 0; o < kGroupOutputs; ++o) weight[o] = s.w[stage][j][group * kGroupOutputs + o][lane];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float value = BF16Value(s.x[stage][j][r][lane]);
#pragma unroll
        for (int o = 0; o < kGroupOutputs; ++o) sum[o][r] = contract::Fma(weight[o], value, sum[o][r]);
      }
      if constexpr (!kSelf) continue;
#pragma unroll
      for (int r = 0; r < kSelfRows; ++r) {
        const float value = BF16Value(s.x[stage][j][group * kSelfRows + r][lane]);
        self[r] = contract::Fma(value, value, self[r]);
      }
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
