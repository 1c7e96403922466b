// A counting sort on the calling thread: a step has few pairs beside its experts' work.
#include <algorithm>

#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::kernels {
namespace {

void CountPairs(const PairGroupsArgs& a) {
  std::fill_n(a.groups.count_X, a.experts, 0);
  for (std::int64_t i = 0; i < a.rows * a.top_k; ++i) {
    if (a.experts_TK[i] >= 0) ++a.groups.count_X[a.experts_TK[i]];
    if (a.experts_TK[i] == -1) *a.nan_flag = 1;
  }
}

void ListActive(const PairGroupsArgs& a) {
  std::int32_t active = 0;
  for (std::int32_t e = 0; e < a.experts; ++e) {
    if (a.groups.count_X[e] > 0) a.groups.active_X[active++] = e;
  }
  *a.groups.num_active = active;
}

// begin_X serves as the place of each expert's next pair until all are placed.
void PlacePairs(const PairGroupsArgs& a) {
  std::int32_t next = 0;
  for (int e = 0; e < a.experts; ++e) {
    a.groups.begin_X[e] = next;
    next += a.groups.count_X[e];
  }
  for (std::int64_t i = 0; i < a.rows * a.top_k; ++i) {
    const std::int32_t expert = a.experts_TK[i];
    a.pair_of_TK[i] = 0;
    if (expert < 0) continue;
    const std::int32_t pair = a.groups.begin_X[expert]++;
    a.token[pair] = static_cast<std::int32_t>(i / a.top_k);
    a.weight[pair] = a.weights_TK[i];
    a.pair_of_TK[i] = pair;
  }
  for (int e = 0; e < a.experts; ++e) a.groups.begin_X[e] -= a.groups.count_X[e];
}

void AddShared(const PairGroupsArgs& a) {
  const auto first = static_cast<std::int32_t>(a.rows * a.top_k), rows = static_cast<std::int32_t>(a.rows);
  a.groups.count_X[a.experts] = rows;
  a.groups.begin_X[a.experts] = first;
  a.groups.active_X[(*a.groups.num_active)++] = a.experts;
  for (std::int32_t t = 0; t < rows; ++t) {
    a.token[first + t] = t;
    a.weight[first + t] = 1.0f;
  }
}

void RunPairGroups(Stream&, const PairGroupsArgs& a) {
  CountPairs(a);
  ListActive(a);
  PlacePairs(a);
  if (a.shared) AddShared(a);
}

}  // namespace

Kernel<PairGroupsArgs> CpuPairGroups() { return {&RunPairGroups, "pair_groups"}; }

}  // namespace lockstep::kernels
