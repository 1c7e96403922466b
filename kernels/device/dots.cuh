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
  float sum[kGroupOutputs][kRows] = {};
  float self[kSelfRows] = {};

  __device__ DotTile(const DotRows& dots, Shared& shared, std::int64_t first_row, int first_output, int first_lane)
      : d(dots), s(shared), row0(first_row), output0(first_output), lane0(first_lane), steps(static_cast<int>((dots.n + kLanesF - 1) / kLanesF)) {}

  __device__ static int Group() { return threadIdx.x / kLanes; }
  __device__ static int Lane() { return threadIdx.x % kLanes; }

  template <bool kSelf>
  __device__ void Run() {
    const bool aligned = reinterpret_cast<std::uintptr_t>(d.x) % 16 == 0 && reinterpret_cast<std::uintptr_t>(d.w) % 16 == 0;
    if (d.n % (kSteps * kLanesF) == 0 && aligned) {
      WholeStages fetch(*this);
      RunStages<kSelf>(fetch);
    } else {
      AnyStages fetch{*this};
      RunStages<kSelf>(fetch);
    }
  }

 private:
  template <bool kSelf, class Stages>
  __device__ void RunStages(Stages& fetch) {
    const int stages = (steps + kSteps - 1) / kSteps;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < stages) fetch(i, i);
      CommitCopies();
    }
    int place = 0;  // of stage i
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      WaitForCopies<kStages - 2>();
      __syncthreads();
      const int free = place == 0 ? kStages - 1 : place - 1;
      if (i + kStages - 1 < stages) fetch(i + kStages - 1, free);
      CommitCopies();
      Multiply<kSelf, Stages::kWhole>(i * kSteps, place);
      place = place + 1 == kStages ? 0 : place + 1;
    }
  }

  // Stages of whole steps, 16 bytes at a time: a thread has the same place in the same rows of every step, so that its pointers only advance.
  template <class T, int kUnitRows>
  struct Units {
    static constexpr int kWidth = 16 / static_cast<int>(sizeof(T)), kOfRow = kLanes / kWidth, kAll = kUnitRows * kOfRow;
    static constexpr int kOfThread = (kAll + kThreads - 1) / kThreads;
    const T* from[kOfThread];

    __device__ Units(const T* rows, std::int64_t row, std::int64_t count, std::int64_t n, int lane) {
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
        const int u = static_cast<int>(threadIdx.x) + i * kThreads;
        from[i] = rows + min(row + u / kOfRow, count - 1) * n + lane + u % kOfRow * kWidth;
      }
    }
    __device__ void Copy(T* to) {
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
        const int u = static_cast<int>(threadIdx.x) + i * kThreads;
        if (kAll % kThreads != 0 && u >= kAll) break;
#pragma unroll
        for (int j = 0; j < kSteps; ++j) CopyAsync<16>(to + j * kAll * kWidth + u * kWidth, from[i] + j * kLanesF);
        from[i] += kSteps * kLanesF;
      }
    }
  };
  struct WholeStages {
    static constexpr bool kWhole = true;
    Shared& s;
    Units<float, kOutputs> w;
    Units<std::uint16_t, kRows> x;
    __device__ explicit WholeStages(const DotTile& t) : s(t.s), w(t.d.w, t.output0, t.d.outputs, t.d.n, t.lane0), x(t.d.x, t.row0, t.d.rows, t.d.n, t.lane0) {}
    __device__ void operator()(int, int place) {
      w.Copy(&s.w[place][0][0][0]);
      x.Copy(&s.x[place][0][0][0]);
    }
  };
  struct AnyStages {
    static constexpr bool kWhole = false;
    const DotTile& t;
    __device__ void operator()(int i, int place) const { t.FetchAny(i, place); }
  };

  __device__ const float* W(int o, int k) const { return d.w + min(output0 + o, d.outputs - 1) * d.n + k; }
  __device__ const std::uint16_t* X(int r, int k) const { return d.x + min(row0 + r, d.rows - 1) * d.n + k; }

  __device__ void FetchAny(int i, int stage) const {
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

  template <bool kSelf, bool kWhole>
  __device__ void Multiply(int first_step, int stage) {
    const int lane = Lane(), group = Group();
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      if (!kWhole && (first_step + j) * kLanesF + lane0 + lane >= d.n) break;
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
