#include "harness/check/pairwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>

namespace lockstep::harness {
namespace {

using Rows = std::vector<std::vector<int>>;

const std::vector<int> kLevels = {8, 6, 4, 3, 3, 2, 2, 2, 5};

// Counted from the rows alone, not with the generator's own book-keeping.
std::size_t PairsIn(const Rows& rows, std::size_t f, std::size_t g) {
  std::set<std::pair<int, int>> pairs;
  for (const auto& row : rows) pairs.insert({row[f], row[g]});
  return pairs.size();
}

TEST(CoverLevelsTest, StrengthTwoHasEveryPairOfEveryTwoFactors) {
  const Rows rows = CoverLevels(kLevels, 2, {});
  for (std::size_t f = 0; f < kLevels.size(); ++f) {
    for (std::size_t g = f + 1; g < kLevels.size(); ++g) {
      EXPECT_EQ(PairsIn(rows, f, g), static_cast<std::size_t>(kLevels[f] * kLevels[g])) << f << " and " << g;
    }
  }
}

TEST(CoverLevelsTest, StrengthOneHasEveryLevel) {
  const Rows rows = CoverLevels(kLevels, 1, {});
  EXPECT_EQ(rows.size(), 8u);
  for (std::size_t f = 0; f < kLevels.size(); ++f) {
    std::set<int> seen;
    for (const auto& row : rows) seen.insert(row[f]);
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(kLevels[f]));
  }
}

// The two largest factors need 48 rows; a greedy cover stays near that.
TEST(CoverLevelsTest, StrengthTwoIsSmall) {
  const Rows rows = CoverLevels(kLevels, 2, {});
  EXPECT_GE(rows.size(), 48u);
  EXPECT_LE(rows.size(), 72u);
}

TEST(CoverLevelsTest, LevelsAreInRange) {
  for (const auto& row : CoverLevels(kLevels, 2, {})) {
    ASSERT_EQ(row.size(), kLevels.size());
    for (std::size_t f = 0; f < row.size(); ++f) {
      EXPECT_GE(row[f], 0);
      EXPECT_LT(row[f], kLevels[f]);
    }
  }
}

TEST(CoverLevelsTest, GivenRowsComeFirstAndCount) {
  const std::vector<int> levels = {2, 2};
  const Rows always = {{1, 1}, {0, 0}};
  const Rows rows = CoverLevels(levels, 2, always);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0], always[0]);
  EXPECT_EQ(rows[1], always[1]);
}

TEST(CoverLevelsTest, IsDeterministic) { EXPECT_EQ(CoverLevels(kLevels, 2, {}), CoverLevels(kLevels, 2, {})); }

}  // namespace
}  // namespace lockstep::harness
