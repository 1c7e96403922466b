// The choice of a row's experts from their scores, by a warp. Contract: docs/numerics.md section 6, Router.
#pragma once

#include "kernels/contract/total_order.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/device/warp_reduce.cuh"
#include "kernels/router/router.h"

namespace lockstep::kernels {

inline constexpr int kMaxTopK = 64, kMaxExperts = 1024;

// What a row's choice is made from and what it leaves, in shared memory.
struct RouterChoice {
  const float* score;      // [experts]
  const float* bias;       // [experts], or null
  std::int32_t* chosen;    // [top_k], best first
  std::int32_t* expert;    // [top_k], ascending; -1 everywhere if a score is NaN
  float* weight;           // [top_k]

  __device__ float Value(int e) const { return bias ? contract::Add(score[e], bias[e]) : score[e]; }
};

// Order keys of a row's experts in a warp: lane l has those of l, l + 32, ...
template <int kItems>
struct ExpertKeys {
  unsigned key[kItems];  // 0: none or taken; a score's key is larger

  // Takes the best one out, of equal ones the first, and returns it: without branches, because rounds wait for one another.
  __device__ unsigned TakeBest() {
    const unsigned lane = threadIdx.x & 31, top = MaxOfWarp(Largest<0, kItems>());
    unsigned equal = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) equal |= key[i] == top ? 1u << i : 0u;
    const unsigned first = MinOfWarp(equal != 0 ? lane + 32 * (__ffs(static_cast<int>(equal)) - 1) : ~0u);
#pragma unroll
    for (int i = 0; i < kItems; ++i) key[i] = first == lane + 32 * i ? 0u : key[i];
    return first;
  }

 private:
  template <int kBegin, int kEnd>
  __device__ unsigned Largest() const {
    if constexpr (kEnd - kBegin == 1) return key[kBegin];
    else return max(Largest<kBegin, (kBegin + kEnd) / 2>(), Largest<(kBegin + kEnd) / 2, kEnd>());
  }
};

// The top_k best, best first.
template <int kItems>
__device__ void ChooseBest(const RouterArgs& a, const RouterChoice& c) {
  const int lane = threadIdx.x & 31;
  ExpertKeys<kItems> keys;
#pragma unroll
  for (int i = 0; i < kItems; ++i) keys.key[i] = lane + 32 * i < a.experts ? contract::OrderKey(c.Value(lane + 32 * i)) : 0u;
#pragma unroll 1
  for (int k = 0; k < a.top_k; ++k) {
    const unsigned best = keys.TakeBest();
    if (lane == 0) c.chosen[k] = static_cast<std::int32_t>(best);
  }
}

// Experts and weights of row t, in shared memory and in the call's arrays.
template <int kItems>
__device__ void ChooseExperts(const RouterArgs& a, std::int64_t t, const RouterChoice& c) {
  const int lane = threadIdx.x & 31;
  bool nan = false;
  for (int e = lane; e < a.experts; e += 32) nan = nan || contract::IsNan(c.Value(e));
  nan = __any_sync(0xffffffffu, nan);
  if (nan) {
    for (int i = lane; i < a.top_k; i += 32) c.expert[i] = a.experts_TK[t * a.top_k + i] = -1;
    return;
  }
  if (a.tid2eid) {
    for (int i = lane; i < a.top_k; i += 32) c.chosen[i] = static_cast<std::int32_t>(a.tid2eid[static_cast<std::int64_t>(a.ids[t]) * a.top_k + i]);
  } else {
    ChooseBest<kItems>(a, c);
  }
  __syncwarp();
  for (int i = lane; i < a.top_k; i += 32) {  // ascending ids; a hash layer may name an expert twice
    int place = 0;
    for (int k = 0; k < a.top_k; ++k) place += c.chosen[k] < c.chosen[i] || (c.chosen[k] == c.chosen[i] && k < i) ? 1 : 0;
    c.expert[place] = c.chosen[i];
  }
  __syncwarp();
  float sum = c.score[c.expert[0]];
  for (int i = 1; i < a.top_k; ++i) sum = contract::Add(sum, c.score[c.expert[i]]);
  if (a.epsilon != 0.0f) sum = contract::Add(sum, a.epsilon);
  for (int i = lane; i < a.top_k; i += 32) {
    const float s = c.score[c.expert[i]];
    a.experts_TK[t * a.top_k + i] = c.expert[i];
    a.weights_TK[t * a.top_k + i] = c.weight[i] = contract::Mul(a.normalize ? contract::Div(s, sum) : s, a.scaling);
  }
}

}  // namespace lockstep::kernels
