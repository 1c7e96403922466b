// Groups of so few pairs that a block finds them by itself. Contract: pair_groups.h.
#pragma once

#include "kernels/device/cuda_stream.cuh"
#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::kernels {

inline constexpr int kFewPairs = 64;

inline bool HasFewPairs(const PairGroupsArgs& a) { return a.rows * a.top_k <= kFewPairs; }

// Calls body(expert, number) for every pair, eight loads at a time: one after the other they would be most of the kernel.
template <class Body>
__device__ inline void ForPairs(const std::int32_t* expert, int pairs, const Body& body) {
#pragma unroll 1
  for (int first = 0; first < pairs; first += 8) {
    int loaded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) loaded[i] = first + i < pairs ? expert[first + i] : -2;
#pragma unroll
    for (int i = 0; i < 8; ++i) body(loaded[i], first + i);
  }
}

// Where pair i goes, and whether it is the first of its expert.
__device__ inline void PlaceFewPair(const PairGroupsArgs& a, const std::int32_t* expert, const float* weight, int i, int pairs, bool* first) {
  const int own = expert[i];
  int place = 0;
  bool is_first = own >= 0;
  ForPairs(expert, pairs, [&](int other, int k) {
    const bool twin_before = other == own && k < i;
    place += other >= 0 && (other < own || twin_before) ? 1 : 0;
    is_first = is_first && !twin_before;
  });
  first[i] = is_first;
  a.pair_of_TK[i] = own >= 0 ? place : 0;
  if (own == -1) *a.nan_flag = 1;
  if (own < 0) return;
  a.token[place] = i / a.top_k;
  a.weight[place] = weight[i];
}

// Group x; the one past the routed experts is the shared expert's.
__device__ inline void CountFewPairs(const PairGroupsArgs& a, const std::int32_t* expert, const bool* first, int x, int pairs) {
  int own = 0, lower = 0, lower_experts = 0;
  ForPairs(expert, pairs, [&](int other, int k) {
    const bool below = other >= 0 && other < x;
    own += other == x ? 1 : 0;
    lower += below ? 1 : 0;
    lower_experts += below && first[k] ? 1 : 0;
  });
  if (x == a.experts) own = static_cast<int>(a.rows), lower = pairs;
  a.groups.count_X[x] = own;
  a.groups.begin_X[x] = lower;
  if (own > 0) a.groups.active_X[lower_experts] = x;
  if (x == a.experts - (a.shared ? 0 : 1)) *a.groups.num_active = lower_experts + (own > 0 ? 1 : 0);
}

// By a block; `expert` and `weight` are those of the arguments, in shared memory.
__device__ inline void GroupFewPairs(const PairGroupsArgs& a, const std::int32_t* expert, const float* weight) {
  __shared__ bool first[kFewPairs];
  const int pairs = static_cast<int>(a.rows) * a.top_k, threads = blockDim.x;
  for (int i = threadIdx.x; i < pairs; i += threads) PlaceFewPair(a, expert, weight, i, pairs, first);
  __syncthreads();
  for (int x = threadIdx.x; x < a.experts + (a.shared ? 1 : 0); x += threads) CountFewPairs(a, expert, first, x, pairs);
  for (int t = threadIdx.x; a.shared && t < a.rows; t += threads) {
    a.token[pairs + t] = t;
    a.weight[pairs + t] = 1.0f;
  }
}

}  // namespace lockstep::kernels
