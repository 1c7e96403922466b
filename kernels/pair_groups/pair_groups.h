// The (token, expert) pairs of a step, grouped by expert: where the experts' rows lie. Integers only, so every implementation gives the
// same values.
#pragma once

#include <cstdint>

#include "kernels/device/stream.h"

namespace lockstep::kernels {

// Routed pairs lie in order of expert, then of row: expert e has pairs begin_X[e] .. begin_X[e] + count_X[e] - 1. Device memory.
struct PairGroups {
  std::int32_t* count_X = nullptr;
  std::int32_t* begin_X = nullptr;
  std::int32_t* active_X = nullptr;    // [experts]: ids of the experts that have pairs, ascending; what follows them is not written
  std::int32_t* num_active = nullptr;  // [1]
};

struct PairGroupsArgs {
  // What the router wrote: -1 in a row whose scores are NaN. Rows with other negative numbers are not of the layer. Neither kind has pairs.
  const std::int32_t* experts_TK = nullptr;
  const float* weights_TK = nullptr;
  std::int64_t rows = 0;
  int top_k = 0;
  int experts = 0;  // at most 1024
  // The shared expert as group number `experts`: pair rows*top_k + t is row t, with weight 1. The groups' arrays then have one more element.
  bool shared = false;
  PairGroups groups;
  std::int32_t* token = nullptr;       // [pairs]: row of a pair
  float* weight = nullptr;             // [pairs]: its routing weight
  std::int32_t* pair_of_TK = nullptr;  // pair of a row's i-th expert; 0 where it has none
  std::int32_t* nan_flag = nullptr;    // set to 1 when a row has -1
};

// The CPU implementation. Its contract id is "pair_groups".
Kernel<PairGroupsArgs> CpuPairGroups();

}  // namespace lockstep::kernels
