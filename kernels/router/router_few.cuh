// The router of few rows in one launch: a warp scores an expert, the last block of a row gathers the scores and chooses; of a single row it can group the
// pairs too. Contract: docs/numerics.md section 6, Router.
#pragma once

#include "kernels/device/dots.cuh"
#include "kernels/device/lane_words.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/elementwise/mixing_matrix.cuh"
#include "kernels/pair_groups/pair_groups_few.cuh"
#include "kernels/router/router_choice.cuh"
#include "kernels/router/router_end.cuh"

namespace lockstep::kernels {

struct FewRowsRouter {
  static constexpr int kThreads = 256, kExpertsOfBlock = 2, kMaxRows = 8, kStreams = 4;  // warps without an expert copy, and group pairs

  RouterArgs router;
  PairGroupsArgs groups;  // of the row, if experts_TK is set
  LaneWord* words;        // [rows][experts]
  SinkhornArgs mix;       // of kStreams streams, if there are rows

  static bool Takes(const RouterArgs& a) { return a.rows <= kMaxRows && a.hidden % 8 == 0 && a.experts <= kMaxExperts; }
  __host__ __device__ int score_blocks() const { return (router.experts + kExpertsOfBlock - 1) / kExpertsOfBlock; }
  // Weights of the block's experts and the rows; where a row ends its scores and the bias.
  std::size_t shared_bytes() const {
    const auto score = static_cast<std::size_t>(router.hidden) * (kExpertsOfBlock * sizeof(float) + static_cast<std::size_t>(router.rows) * 2);
    const auto end = static_cast<std::size_t>(router.experts) * 2 * sizeof(float);
    return score > end ? score : end;
  }
};

// A warp's scores of an expert with all rows, the same in all lanes.
template <int kRows>
__device__ void ScoreExpert(const float* w, const std::uint16_t* x, int n, int rows, float (&score)[kRows]) {
  float sum[kRows][4] = {};
#pragma unroll 8
  for (int k = 4 * (threadIdx.x & 31); k < n; k += kLanesF) {
    const float4 weight = *reinterpret_cast<const float4*>(w + k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 v = WidenFour(*reinterpret_cast<const uint2*>(x + min(r, rows - 1) * n + k));
      sum[r][0] = contract::Fma(weight.x, v.x, sum[r][0]), sum[r][1] = contract::Fma(weight.y, v.y, sum[r][1]);
      sum[r][2] = contract::Fma(weight.z, v.z, sum[r][2]), sum[r][3] = contract::Fma(weight.w, v.w, sum[r][3]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) score[r] = contract::SqrtSoftplus(FoldQuads(sum[r]));
}

// Scores of the block's experts for all rows. What a block does before the rows are there it does for its instructions.
template <int kRows>
__device__ void ScoreExperts(const FewRowsRouter& call, std::byte* memory) {
  constexpr int kThreads = FewRowsRouter::kThreads, kExperts = FewRowsRouter::kExpertsOfBlock;
  const RouterArgs& a = call.router;
  const int n = static_cast<int>(a.hidden), rows = static_cast<int>(a.rows), warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int first = static_cast<int>(blockIdx.x) * kExperts, experts = min(kExperts, a.experts - first);
  auto* w = reinterpret_cast<float*>(memory);                     // [experts][n]
  auto* x = reinterpret_cast<std::uint16_t*>(w + kExperts * n);  // [rows][n]
  for (int i = 4 * threadIdx.x; i < experts * n; i += 4 * kThreads) CopyAsync<16>(w + i, a.gate_XE + std::int64_t{first} * n + i);
#pragma unroll 1
  for (int real = 0; real < 2; ++real) {
    if (real) {
      __syncthreads();
      BeginInTurn();
      for (int i = 8 * threadIdx.x; i < rows * n; i += 8 * kThreads) CopyAsync<16>(x + i, a.x_TE + i);
    }
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
    if (warp >= experts) continue;
    float score[kRows];
    ScoreExpert<kRows>(w + warp * n, x, n, rows, score);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (real && lane == 0 && r < rows) SendLane(call.words + r * a.experts + first + warp, score[r]);
    }
  }
}

// Choice and pairs of a row, by a block of which one warp does it all where the pairs lie as the choice does.
template <int kItems>
__device__ void EndRow(const FewRowsRouter& call, std::int64_t t, std::byte* memory) {
  __shared__ std::int32_t chosen[kMaxTopK], expert[kMaxTopK];
  __shared__ float weight[kMaxTopK];
  __shared__ bool grouped;
  const RouterArgs& a = call.router;
  auto* score = reinterpret_cast<float*>(memory);  // [experts], of a hash layer
  if (threadIdx.x < 32) {
    const bool takes = RowEnd<kItems>::Takes(a);
    RowEnd<kItems> end(call.router, call.groups, t);
    bool done = false;
#pragma unroll 1
    for (int real = takes ? 0 : 1; real < 2; ++real) {  // the first time for the instructions
      if (real) {
        BeginInTurn();
        end.Gather(call.words + t * a.experts);
      }
      if (takes) done = end.Finish(real != 0, expert, weight);
    }
    if (!takes) {
      end.Keep(score);
      ChooseExperts<kItems>(a, t, {score, a.bias_X, chosen, expert, weight});
    }
    if (threadIdx.x == 0) grouped = done;
  } else {
    BeginInTurn();
  }
  if (!call.groups.experts_TK) return;
  __syncthreads();
  if (!grouped) GroupFewPairs(call.groups, expert, weight);
}

// Blocks: two experts each, one a row's mixing matrix, then one for each row that ends it and has to start last. The next kernel starts when the rows are
// there: the shared expert needs no choice.
template <int kRows, int kItems>
__global__ void __launch_bounds__(FewRowsRouter::kThreads, kRows > 1 || kItems > 12 ? 1 : 3) FewRowsRouterKernel(const __grid_constant__ FewRowsRouter call) {
  extern __shared__ __align__(16) std::byte memory[];
  const int mixed = static_cast<int>(blockIdx.x) - call.score_blocks();
  const int row = mixed - static_cast<int>(call.mix.rows);
  if (mixed < 0) {
    ScoreExperts<kRows>(call, memory);
  } else if (row < 0) {
    BeginInTurn();
    if (threadIdx.x < 32) FinishMix<1, FewRowsRouter::kStreams>(call.mix, mixed);
  } else {
    EndRow<kItems>(call, row, memory);
  }
}

}  // namespace lockstep::kernels
