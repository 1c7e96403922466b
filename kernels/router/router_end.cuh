// The end of a row whose scores other blocks send: a warp keeps them in registers, takes the best and finds places, weights and pairs from masks of what it took.
// It is the last step before the experts, one dependent instruction after the other, so nothing in it goes through memory that does not have to.
// Contract: docs/numerics.md section 6, Router; pair_groups.h.
#pragma once

#include "kernels/contract/total_order.h"
#include "kernels/device/lane_words.cuh"
#include "kernels/pair_groups/pair_groups.h"
#include "kernels/router/router_choice.cuh"

namespace lockstep::kernels {

// Lane l has experts l, l + 32, ... of row t. `groups`: of this row alone, if experts_TK is set.
template <int kItems>
class RowEnd {
 public:
  // Before the wait.
  __device__ RowEnd(const RouterArgs& args, const PairGroupsArgs& pair_groups, std::int64_t row) : a(args), groups(pair_groups), t(row) {
    for (float& x : score) x = 0.0f;
    for (float& x : bias) x = 0.0f;
    if (!a.bias_X) return;
#pragma unroll
    for (int i = 0; i < kItems; ++i) bias[i] = a.bias_X[Near(i)];
  }

  // Whether the choice is the best of a row, and a lane has room for each.
  __device__ static bool Takes(const RouterArgs& a) { return !a.tid2eid && a.top_k <= 32; }

  // Waits for the scores, and leaves the words as they were.
  __device__ void Gather(LaneWord* words) {
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < kItems; ++i) there = ReceiveLane(words + Near(i), score[i]) && there;
    } while (!__all_sync(0xffffffffu, there));
#pragma unroll
    for (int i = 0; i < kItems; ++i) ClearLane(words + Near(i));
  }

  __device__ void Keep(float* scores) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) scores[Near(i)] = score[i];
    __syncwarp();
  }

  // Experts and weights; with groups, the pairs too. False: a score is NaN, so there are none. Where they are not `real`, nothing is stored but in
  // `expert` and `weight`, shared memory of top_k.
  __device__ bool Finish(bool real, std::int32_t* expert, float* weight) {
    bool nan = false;
#pragma unroll
    for (int i = 0; i < kItems; ++i) nan |= contract::IsNan(Value(i));
    if (__any_sync(0xffffffffu, nan) && real) {
      if (lane < a.top_k) expert[lane] = a.experts_TK[t * a.top_k + lane] = -1;
      return false;
    }
    Choose();
    Place(real, expert, weight);
    __syncwarp();
    Weigh(real, expert[min(lane, a.top_k - 1)], weight[min(lane, a.top_k - 1)]);
    return true;
  }

 private:
  __device__ int Expert(int i) const { return lane + 32 * i; }
  __device__ bool Inside(int i) const { return Expert(i) < a.experts; }
  // Past the last expert that one, so that loads stand together without branches between them.
  __device__ int Near(int i) const { return min(Expert(i), a.experts - 1); }
  __device__ float Value(int i) const { return contract::Add(score[i], bias[i]); }

  // Bit i of `taken`: the lane's i-th expert is one of the best.
  __device__ void Choose() {
    ExpertKeys<kItems> keys;
#pragma unroll
    for (int i = 0; i < kItems; ++i) keys.key[i] = contract::OrderKey(Value(i)) & (Inside(i) ? ~0u : 0u);
    taken = 0;
#pragma unroll 1
    for (int k = 0; k < a.top_k; ++k) {
      const unsigned best = keys.TakeBest();
      taken |= best % 32 == static_cast<unsigned>(lane) ? 1u << best / 32 : 0u;
    }
  }

  // Those taken ascending by id: that is where their pairs lie as well.
  __device__ void Place(bool real, std::int32_t* expert, float* weight) const {
    int before = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool own = (taken >> i & 1u) != 0;
      const unsigned all = __ballot_sync(0xffffffffu, own);
      const int place = before + __popc(all & ((1u << lane) - 1u));
      if (own) expert[place] = Expert(i), weight[place] = score[i];
      if (real && groups.experts_TK && Inside(i)) groups.groups.count_X[Expert(i)] = own ? 1 : 0, groups.groups.begin_X[Expert(i)] = place;
      before += __popc(all);
    }
  }

  // Lane i: the i-th expert and its score.
  __device__ void Weigh(bool real, std::int32_t expert, float own) const {
    constexpr int kOften = 8;
    float sum = __shfl_sync(0xffffffffu, own, 0);
#pragma unroll
    for (int i = 1; i < kOften; ++i) {
      const float other = __shfl_sync(0xffffffffu, own, i);
      if (i < a.top_k) sum = contract::Add(sum, other);
    }
#pragma unroll 1
    for (int i = kOften; i < a.top_k; ++i) sum = contract::Add(sum, __shfl_sync(0xffffffffu, own, i));
    if (a.epsilon != 0.0f) sum = contract::Add(sum, a.epsilon);
    const float weight = contract::Mul(a.normalize ? contract::Div(own, sum) : own, a.scaling);
    if (!real || lane >= a.top_k) return;
    a.experts_TK[t * a.top_k + lane] = expert;
    a.weights_TK[t * a.top_k + lane] = weight;
    if (groups.experts_TK) StorePair(expert, weight);
  }

  __device__ void StorePair(std::int32_t expert, float weight) const {
    const PairGroups& g = groups.groups;
    g.active_X[lane] = expert;
    groups.token[lane] = 0;
    groups.weight[lane] = weight;
    groups.pair_of_TK[lane] = lane;
    if (lane != 0) return;
    *g.num_active = a.top_k + (groups.shared ? 1 : 0);
    if (!groups.shared) return;
    g.active_X[a.top_k] = a.experts;
    g.count_X[a.experts] = 1;
    g.begin_X[a.experts] = a.top_k;
    groups.token[a.top_k] = 0;
    groups.weight[a.top_k] = 1.0f;
  }

  const RouterArgs& a;
  const PairGroupsArgs& groups;
  const std::int64_t t;
  const int lane = threadIdx.x & 31;
  float score[kItems], bias[kItems];
  unsigned taken = 0;
};

}  // namespace lockstep::kernels
