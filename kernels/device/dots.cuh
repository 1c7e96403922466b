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

// How a tile is cut: a thread has one of kLanes lanes, kRows rows and kGroupOutputs outputs; there are kGroups groups of outputs. Operands of kSteps steps of
// 128 channels come together, kStages - 1 of them ahead.
template <int kLanesOfTile, int kRowsOfTile, int kOutputsOfGroup, int kGroupsOfTile, int kStepsOfStage, int kStagesOfTile>
struct DotCut {
  static constexpr int kLanes = kLanesOfTile, kRows = kRowsOfTile, kGroupOutputs = kOutputsOfGroup, kGroups = kGroupsOfTile;
  static constexpr int kSteps = kStepsOfStage, kStages = kStagesOfTile, kOutputs = kGroups * kGroupOutputs, kThreads = kLanes * kGroups;
};

// A tile of rows and outputs. Operands of the next steps of 128 channels are on their way to shared memory while these are multiplied. Rows and outputs past
// the end repeat the last.
template <class Cut>
struct DotTile : Cut {
  using Cut::kLanes, Cut::kRows, Cut::kGroups, Cut::kGroupOutputs, Cut::kOutputs, Cut::kSteps, Cut::kStages, Cut::kThreads;
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
    const Units<float, kOutputs> w(d.w, output0, d.outputs, d.n, lane0);
    const Units<std::uint16_t, kRows> x(d.x, row0, d.rows, d.n, lane0);
    for (int i = 0; i < kStages - 1; ++i) Fetch(i, stages, w, x);
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      WaitForCopies<kStages - 2>();
      __syncthreads();
      Fetch(i + kStages - 1, stages, w, x);
      Multiply<kSelf>(i);
    }
  }

 private:
  // The 16-byte units of a stage's rows of one operand that this thread copies, as offsets from the first row.
  template <class T, int kUnitRows>
  struct Units {
    static constexpr int kOfRow = kLanes * static_cast<int>(sizeof(T)) / 16, kOfStep = kUnitRows * kOfRow, kAll = kSteps * kOfStep;
    static constexpr int kOfThread = (kAll + kThreads - 1) / kThreads;
    const T* first;
    int offset[kOfThread];

    __device__ Units(const T* rows, std::int64_t row, std::int64_t count, std::int64_t n, int lane) : first(rows + row * n + lane) {
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
        const int u = Unit(i), r = u / kOfRow % kUnitRows;
        offset[i] = static_cast<int>((min(row + r, count - 1) - row) * n) + u / kOfStep * kLanesF + u % kOfRow * (16 / static_cast<int>(sizeof(T)));
      }
    }
    __device__ static int Unit(int i) { return threadIdx.x + i * kThreads; }

    // Those of the stage that begins at `step`.
    __device__ void Copy(T* to, int step, int steps) const {
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
        const int u = Unit(i);
        if ((kAll % kThreads == 0 || u < kAll) && (kSteps == 1 || step + u / kOfStep < steps)) CopyAsync<16>(to + u * (16 / static_cast<int>(sizeof(T))), first + offset[i] + step * kLanesF);
      }
    }
  };

  __device__ const float* W(int o, int k) const { return d.w + min(output0 + o, d.outputs - 1) * d.n + k; }
  __device__ const std::uint16_t* X(int r, int k) const { return d.x + min(row0 + r, d.rows - 1) * d.n + k; }

  __device__ void Fetch(int i, int stages, const Units<float, kOutputs>& w, const Units<std::uint16_t, kRows>& x) {
    if (i < stages) {
      if (whole) {
        w.Copy(&s.w[i % kStages][0][0][0], i * kSteps, steps);
        x.Copy(&s.x[i % kStages][0][0][0], i * kSteps, steps);
      } else {
        FetchAny(i);
      }
    }
    CommitCopies();
  }

  __device__ void FetchAny(int i) {
    const int stage = i % kStages;
#pragma unroll 1
    for (int j = 0; j < kSteps; ++j) {
      const int k0 = (i * kSteps + j) * kLanesF + lane0;
#pragma unroll 1
      for (int u = threadIdx.x; u < kOutputs * kLanes; u += kThreads) {
        if (k0 + u % kLanes < d.n) s.w[stage][j][u / kLanes][u % kLanes] = *W(u / kLanes, k0 + u % kLanes);
      }
#pragma unroll 1
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

// fold of 128 lanes that lie in shared memory, 16-byte aligned, by one thread.
__device__ inline float FoldRow(const float* lanes) {
  using contract::Add;
  float x[32];
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const auto at = [lanes, i](int lane) { return *reinterpret_cast<const float4*>(lanes + i + lane); };
    const float4 a = at(0), b = at(32), c = at(64), d = at(96);
    x[i] = Add(Add(a.x, c.x), Add(b.x, d.x)), x[i + 1] = Add(Add(a.y, c.y), Add(b.y, d.y));
    x[i + 2] = Add(Add(a.z, c.z), Add(b.z, d.z)), x[i + 3] = Add(Add(a.w, c.w), Add(b.w, d.w));
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = Add(x[i], x[i + 16]);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = Add(x[i], x[i + 8]);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = Add(x[i], x[i + 4]);
  return Add(Add(x[0], x[2]), Add(x[1], x[3]));
}

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
