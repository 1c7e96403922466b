// Router scores of many rows: a warp has six rows and eight experts, a thread four neighbouring lanes of each of their dots, so that a dot's lanes meet by
// shuffles in the order of the contract's fold. Contract: docs/numerics.md sections 2 and 6, Router.
#pragma once

#include "kernels/device/dots.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

struct RouterScores {
  float* data;  // [rows][experts]
  int experts;
  __device__ void Store(std::int64_t t, int e, float dot) const { data[t * experts + e] = contract::SqrtSoftplus(dot); }
};

class RouterTile {
 public:
  static constexpr int kWarpRows = 6, kWarpExperts = 8, kRowWarps = 4, kExpertWarps = 2;
  static constexpr int kRows = kWarpRows * kRowWarps, kExperts = kWarpExperts * kExpertWarps, kThreads = 32 * kRowWarps * kExpertWarps;
  static constexpr int kChannels = 2 * kLanesF, kStages = 4;  // of a row that come in one copy, and how many such are on their way

  struct Shared {
    struct Stage {
      float w[kExperts][kChannels];
      std::uint16_t x[kRows][kChannels];
    } stage[kStages];
    std::uint64_t arrived[kStages];  // mbarriers
  };

  // Rows are 16-byte aligned and a multiple of kChannels long. Rows and experts past the end repeat the last.
  static bool Takes(const DotRows& d) {
    return d.n % kChannels == 0 && (reinterpret_cast<std::uintptr_t>(d.x) | reinterpret_cast<std::uintptr_t>(d.w)) % 16 == 0;
  }

  __device__ RouterTile(const DotRows& dots, Shared& shared) : d(dots), s(shared), row0(blockIdx.y * std::int64_t{kRows}), expert0(static_cast<int>(blockIdx.x) * kExperts) {
    if (threadIdx.x == 0) {
      for (std::uint64_t& barrier : s.arrived) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(&barrier)) : "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
  }

  __device__ void Run(const RouterScores& to) {
    const int count = static_cast<int>(d.n) / kChannels;
#pragma unroll 1
    for (int i = 0; i < min(kStages - 1, count); ++i) Fetch(i);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      Wait(i);
#pragma unroll
      for (int k = 0; k < kChannels; k += kLanesF) Multiply(s.stage[i % kStages], k);
      __syncthreads();  // nobody reads the stage now
      if (i + kStages < count + 1) Fetch(i + kStages - 1);
    }
    Fold(to);
  }

 private:
  __device__ static int WarpRow() { return static_cast<int>(threadIdx.x) / 32 % kRowWarps * kWarpRows; }
  __device__ static int WarpExpert() { return static_cast<int>(threadIdx.x) / 32 / kRowWarps * kWarpExperts; }

  // Five rows a warp.
  __device__ void Fetch(int i) const {
    typename Shared::Stage& stage = s.stage[i % kStages];
    const std::uint32_t arrived = SharedAddress(&s.arrived[i % kStages]);
    constexpr int kCopies = (kExperts + kRows) / (kThreads / 32);
    static_assert(kCopies * (kThreads / 32) == kExperts + kRows);
    if (threadIdx.x == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(static_cast<unsigned>(sizeof(stage))) : "memory");
    if (threadIdx.x % 32 >= kCopies) return;
    const int copy = static_cast<int>(threadIdx.x) / 32 * kCopies + static_cast<int>(threadIdx.x) % 32, row = copy - kExperts;
    if (row < 0) Copy(stage.w[copy], d.w + min(expert0 + copy, d.outputs - 1) * d.n + i * kChannels, arrived);
    else Copy(stage.x[row], d.x + min(row0 + row, d.rows - 1) * d.n + i * kChannels, arrived);
  }
  template <class T>
  __device__ static void Copy(T (&to)[kChannels], const T* from, std::uint32_t arrived) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(SharedAddress(to)), "l"(from), "n"(sizeof(to)), "r"(arrived)
                 : "memory");
  }
  __device__ void Wait(int i) const {
    std::uint32_t done = 0;
    while (!done) {
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                   : "=r"(done)
                   : "r"(SharedAddress(&s.arrived[i % kStages])), "r"(i / kStages & 1)
                   : "memory");
    }
  }

  // One step of 128 channels.
  __device__ void Multiply(const typename Shared::Stage& stage, int k) {
    const int column = k + 4 * (static_cast<int>(threadIdx.x) & 31);
    float4 w[kWarpExperts];
#pragma unroll
    for (int e = 0; e < kWarpExperts; ++e) w[e] = *reinterpret_cast<const float4*>(&stage.w[WarpExpert() + e][column]);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const float4 x = WidenFour(*reinterpret_cast<const uint2*>(&stage.x[WarpRow() + r][column]));
#pragma unroll
      for (int e = 0; e < kWarpExperts; ++e) {
        sum[e][r][0] = contract::Fma(w[e].x, x.x, sum[e][r][0]), sum[e][r][1] = contract::Fma(w[e].y, x.y, sum[e][r][1]);
        sum[e][r][2] = contract::Fma(w[e].z, x.z, sum[e][r][2]), sum[e][r][3] = contract::Fma(w[e].w, x.w, sum[e][r][3]);
      }
    }
  }

  // Of two dots' lanes, a thread keeps those of one and its partner those of the other, each with what the two had.
  __device__ static float Meet(float first, float second, int apart) {
    const bool high = threadIdx.x & apart;
    return contract::Add(high ? second : first, __shfl_xor_sync(0xffffffffu, high ? first : second, apart));
  }

  // Threads 16, 8, 4, 2 and 1 apart have lanes 64, 32, .. 4 apart. Thread t ends with expert t / 4 and rows 3 (t / 2 % 2) to + 2.
  __device__ void Fold(const RouterScores& to) const {
    float four[4][kWarpRows][4], two[2][kWarpRows][4], one[kWarpRows][4];
#pragma unroll
    for (int i = 0; i < 4 * kWarpRows * 4; ++i) four[i / 24][i / 4 % 6][i % 4] = Meet(sum[i / 24][i / 4 % 6][i % 4], sum[i / 24 + 4][i / 4 % 6][i % 4], 16);
#pragma unroll
    for (int i = 0; i < 2 * kWarpRows * 4; ++i) two[i / 24][i / 4 % 6][i % 4] = Meet(four[i / 24][i / 4 % 6][i % 4], four[i / 24 + 2][i / 4 % 6][i % 4], 8);
#pragma unroll
    for (int i = 0; i < kWarpRows * 4; ++i) one[i / 4][i % 4] = Meet(two[0][i / 4][i % 4], two[1][i / 4][i % 4], 4);
    const int lane = threadIdx.x & 31, expert = expert0 + WarpExpert() + lane / 4;
#pragma unroll
    for (int r = 0; r < kWarpRows / 2; ++r) {
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = Meet(one[r][i], one[r + 3][i], 2);
        x[i] = contract::Add(x[i], __shfl_xor_sync(0xffffffffu, x[i], 1));
      }
      const std::int64_t row = row0 + WarpRow() + lane / 2 % 2 * 3 + r;
      if (lane % 2 == 0 && row < d.rows && expert < d.outputs) to.Store(row, expert, contract::Add(contract::Add(x[0], x[2]), contract::Add(x[1], x[3])));
    }
  }

  const DotRows& d;
  Shared& s;
  const std::int64_t row0;
  const int expert0;
  float sum[kWarpExperts][kWarpRows][4] = {};
};

// Block: 16 experts (x) of 24 rows (y).
__global__ void __launch_bounds__(RouterTile::kThreads, 1) RouterTileKernel(const __grid_constant__ DotRows d, RouterScores to) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  RouterTile(d, *reinterpret_cast<RouterTile::Shared*>(memory)).Run(to);
#endif
}

}  // namespace lockstep::kernels
