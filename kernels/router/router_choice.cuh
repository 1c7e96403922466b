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

// The top_k best, best first, by a warp whose threads hold every 32nd expert.
template <int kItems>
__device__ void ChooseBest(const RouterArgs& a, const RouterChoice& c) {
  const int lane = threadIdx.x & 31;
  unsigned key[kItems];  // 0: none or taken; a score's key is larger
#pragma unroll
  for (int i = 0; i < kItems; ++i) key[i] = lane + 32 * i < a.experts ? contract::OrderKey(c.Value(lane + 32 * i)) : 0u;
  for (int k = 0; k < a.top_k; ++k) {
    unsigned best = 0, place = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (key[i] > best) best = key[i], place = static_cast<unsigned>(i);
    }
    const unsigned top = MaxOfWarp(best), first = MinOfWarp(best == top ? lane + 32 * place : ~0u);
    if (lane == 0) c.chosen[k] = static_cast<std::int32_t>(first);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (first == static_cast<unsigned>(lane + 32 * i)) key[i] = 0;
    }
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
