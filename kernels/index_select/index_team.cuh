// Rows of many entries, few of them: blocks that are on the device together score a stretch of a row each, keep its order keys, and choose the row's best in
// the same launch. Contract: docs/numerics.md section 6, Index score and Selection.
#pragma once

#include "kernels/index_select/index_scores.cuh"
#include "kernels/index_select/index_team_selection.cuh"

namespace lockstep::kernels {

// Entries of each of a row's blocks, but for the last.
__host__ __device__ inline std::int64_t TeamStretch(std::int64_t entries, std::int64_t blocks) {
  constexpr std::int64_t kLeast = 8 * kTeamWarps;  // a turn of the warps
  const std::int64_t even = (entries + blocks - 1) / blocks;
  return even < kLeast ? kLeast : (even + 7) / 8 * 8;
}

// Block: a stretch of entries (x) of a row (y). Blocks wait for one another: there is at most one for each multiprocessor.
template <int kBlocks, int kHeadTiles>
__global__ void __launch_bounds__(kTeamThreads, 1) TeamSelectKernel(const __grid_constant__ IndexSelectArgs a, const IndexQuery<kBlocks, kHeadTiles>* queries, TeamRow* team) {
  StartNextKernel();
  extern __shared__ __align__(16) unsigned key[];
  __shared__ __align__(16) TeamSelection::Shared shared;
  const std::int64_t t = blockIdx.y;
  const IndexEntries entries(a, t);
  const std::int64_t stretch = TeamStretch(entries.count, gridDim.x);
  if (blockIdx.x * stretch >= entries.count) {
    WaitForKernelsBefore();
    if (blockIdx.x == 0 && threadIdx.x == 0) a.count_T[t] = 0;
    return;
  }
  TeamSelection selection(shared, team[t], key, stretch, entries.count, a.top_k);
  selection.Clear();
  __syncthreads();
  const int begin = selection.begin(), first = begin + static_cast<int>(threadIdx.x) / 32 * 8;
  ScoreInTurn(a, entries, queries[t], first, 8 * kTeamWarps, selection.end(), [&](float2 score, int from) {
    const int lane = threadIdx.x & 31;  // a stretch has room for all eight
    if (lane < 4) *reinterpret_cast<float2*>(key + (from - begin + 2 * lane)) = score;
  });
  __syncthreads();
  selection.TakeScores(a.scores_out && !a.candidates_in ? a.scores_out + t * a.scores_stride : nullptr);
  __syncthreads();
  const bool numbers = selection.FindThreshold();
  if (numbers) selection.ForChosen([&](int place, int i) { a.selected_TK[t * a.top_k + place] = static_cast<std::int32_t>(entries.Number(begin + i)); });
  if (blockIdx.x == 0 && threadIdx.x == 0) a.count_T[t] = numbers ? static_cast<std::int32_t>(min(entries.count, std::int64_t{a.top_k})) : -1;
}

}  // namespace lockstep::kernels
