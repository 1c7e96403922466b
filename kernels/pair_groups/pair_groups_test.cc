// Groups against what pair_groups.h says of them, property by property, on random choices, full and empty experts and NaN rows.
#include "kernels/pair_groups/pair_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/testing/implementations.h"

namespace lockstep::kernels {
namespace {

constexpr std::int32_t kGuard = -77;

struct Groups {
  std::vector<std::int32_t> count_X, begin_X, active_X, token, pair_of_TK;
  std::vector<float> weight;
  std::vector<std::int32_t> num_active = {kGuard}, nan_flag = {0};
};

struct Choices {
  std::int64_t rows = 0;
  int top_k = 0, experts = 0;
  std::vector<std::int32_t> experts_TK;
  std::vector<float> weights_TK;
};

// Distinct experts a row, ascending, out of the `used` first; every `negative_every`-th row has `negative` instead.
Choices RandomChoices(std::int64_t rows, int top_k, int experts, int used, int negative_every = 0, int negative = -1) {
  Choices c{rows, top_k, experts, {}, {}};
  std::mt19937 random(static_cast<unsigned>(rows * 131 + experts));
  std::vector<std::int32_t> all(static_cast<std::size_t>(used));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t t = 0; t < rows; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    std::vector<std::int32_t> row(all.begin(), all.begin() + top_k);
    std::sort(row.begin(), row.end());
    if (negative_every > 0 && t % negative_every == negative_every - 1) std::fill(row.begin(), row.end(), negative);
    c.experts_TK.insert(c.experts_TK.end(), row.begin(), row.end());
  }
  for (std::size_t i = 0; i < c.experts_TK.size(); ++i) c.weights_TK.push_back(0.25f + static_cast<float>(i));
  return c;
}

Groups Run(const Implementation& implementation, const Choices& c, bool shared) {
  Groups g;
  g.count_X.assign(static_cast<std::size_t>(c.experts + 1), kGuard);
  g.begin_X = g.active_X = g.count_X;
  const std::size_t pairs = c.experts_TK.size() + static_cast<std::size_t>(c.rows);
  g.token.assign(pairs, kGuard);
  g.pair_of_TK.assign(c.experts_TK.size(), kGuard);
  g.weight.assign(pairs, -1.0f);
  CallMemory memory(implementation);
  PairGroupsArgs args;
  args.experts_TK = memory.In(c.experts_TK);
  args.weights_TK = memory.In(c.weights_TK);
  args.rows = c.rows;
  args.top_k = c.top_k;
  args.experts = c.experts;
  args.shared = shared;
  args.groups = {memory.InOut(g.count_X), memory.InOut(g.begin_X), memory.InOut(g.active_X), memory.InOut(g.num_active)};
  args.token = memory.InOut(g.token);
  args.weight = memory.InOut(g.weight);
  args.pair_of_TK = memory.InOut(g.pair_of_TK);
  args.nan_flag = memory.InOut(g.nan_flag);
  implementation.kernels().pair_groups(implementation.stream(), args);
  memory.Finish();
  return g;
}

// The shared expert's group, taken off again so that the rest can be looked at alike.
void CheckShared(const Choices& c, Groups* g) {
  const auto x = static_cast<std::size_t>(c.experts), routed = c.experts_TK.size();
  ASSERT_EQ(g->count_X[x], c.rows);
  ASSERT_EQ(g->begin_X[x], static_cast<std::int32_t>(routed));
  ASSERT_EQ(std::exchange(g->active_X[static_cast<std::size_t>(--g->num_active[0])], kGuard), c.experts);
  for (std::int64_t t = 0; t < c.rows; ++t) {
    ASSERT_EQ(std::exchange(g->token[routed + static_cast<std::size_t>(t)], kGuard), t);
    ASSERT_EQ(std::exchange(g->weight[routed + static_cast<std::size_t>(t)], -1.0f), 1.0f);
  }
}

void CheckGroups(const Choices& c, const Groups& g) {
  std::int32_t pairs = 0, active = 0;
  for (std::int32_t e = 0; e < c.experts; ++e) {
    const auto x = static_cast<std::size_t>(e);
    ASSERT_EQ(g.count_X[x], std::count(c.experts_TK.begin(), c.experts_TK.end(), e));
    ASSERT_EQ(g.begin_X[x], pairs) << "pairs of an expert follow those of the lower ones";
    for (std::int32_t p = pairs + 1; p < pairs + g.count_X[x]; ++p) {
      ASSERT_LT(g.token[static_cast<std::size_t>(p - 1)], g.token[static_cast<std::size_t>(p)]) << "rows ascend";
    }
    pairs += g.count_X[x];
    if (g.count_X[x] == 0) continue;
    ASSERT_EQ(g.active_X[static_cast<std::size_t>(active++)], e);
  }
  ASSERT_EQ(g.num_active[0], active);
  for (std::size_t i = static_cast<std::size_t>(active); i < g.active_X.size(); ++i) ASSERT_EQ(g.active_X[i], kGuard);
  bool nan = false;
  for (std::size_t i = 0; i < c.experts_TK.size(); ++i) {
    const std::int32_t expert = c.experts_TK[i], pair = g.pair_of_TK[i];
    nan = nan || expert == -1;
    if (expert < 0) {
      ASSERT_EQ(pair, 0);
      continue;
    }
    const auto x = static_cast<std::size_t>(expert), p = static_cast<std::size_t>(pair);
    ASSERT_TRUE(pair >= g.begin_X[x] && pair < g.begin_X[x] + g.count_X[x]);
    ASSERT_EQ(g.token[p], static_cast<std::int32_t>(i) / c.top_k);
    ASSERT_EQ(g.weight[p], c.weights_TK[i]);
  }
  ASSERT_EQ(g.nan_flag[0], nan ? 1 : 0);
  for (std::size_t p = static_cast<std::size_t>(pairs); p < g.token.size(); ++p) ASSERT_EQ(g.token[p], kGuard) << "past the last pair";
}

void Check(const Choices& c) {
  std::vector<Implementation> all = DeviceImplementations();
  all.emplace_back(Isa::kGeneric, Profile::kSm90, 1);
  for (const Implementation& implementation : all) {
    SCOPED_TRACE(implementation.name());
    for (const bool shared : {false, true}) {
      Groups groups = Run(implementation, c, shared);
      if (shared) CheckShared(c, &groups);
      CheckGroups(c, groups);
    }
  }
}

TEST(PairGroups, OneTokenOfAFullModel) { Check(RandomChoices(1, 6, 384, 384)); }

TEST(PairGroups, ManySizes) {
  for (const std::int64_t rows : {2, 5, 17, 64, 300, 1025}) {
    for (const int experts : {6, 31, 256}) Check(RandomChoices(rows, 6, experts, experts));
  }
}

TEST(PairGroups, FewExpertsTakeAll) {
  Check(RandomChoices(40, 3, 64, 3));
  Check(RandomChoices(9, 1, 5, 1));
}

TEST(PairGroups, RowsWithNanHaveNoPairs) {
  Check(RandomChoices(20, 4, 16, 16, 3));
  Check(RandomChoices(3, 2, 8, 8, 1));
}

TEST(PairGroups, RowsOfOtherLayersHaveNoPairs) { Check(RandomChoices(20, 4, 16, 16, 3, -2)); }

}  // namespace
}  // namespace lockstep::kernels
