#include "harness/check/pairwise.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>

#include "model/error.h"

namespace lockstep::harness {
namespace {

using Row = std::vector<int>;

// A level of one factor (second factor -1), or levels of two factors, first < second.
struct Combination {
  int first = 0, first_level = 0, second = -1, second_level = 0;
  auto operator<=>(const Combination&) const = default;
};

std::set<Combination> AllCombinations(std::span<const int> levels, int strength) {
  std::set<Combination> all;
  for (int f = 0; f < static_cast<int>(levels.size()); ++f) {
    for (int a = 0; a < levels[static_cast<std::size_t>(f)]; ++a) {
      if (strength == 1) all.insert({f, a, -1, 0});
      for (int g = f + 1; strength == 2 && g < static_cast<int>(levels.size()); ++g) {
        for (int b = 0; b < levels[static_cast<std::size_t>(g)]; ++b) all.insert({f, a, g, b});
      }
    }
  }
  return all;
}

bool Has(const Row& row, const Combination& c) {
  return row[static_cast<std::size_t>(c.first)] == c.first_level &&
         (c.second < 0 || row[static_cast<std::size_t>(c.second)] == c.second_level);
}

void Take(const Row& row, std::set<Combination>* open) {
  std::erase_if(*open, [&](const Combination& c) { return Has(row, c); });
}

// Open combinations that setting factor `f` to `level` completes, given the factors that are set (level >= 0).
int Gain(const Row& row, int f, int level, const std::set<Combination>& open, int strength) {
  if (strength == 1) return open.contains({f, level, -1, 0});
  int gain = 0;
  for (int g = 0; g < static_cast<int>(row.size()); ++g) {
    const int other = row[static_cast<std::size_t>(g)];
    if (g == f || other < 0) continue;
    gain += g < f ? open.contains({g, other, f, level}) : open.contains({f, level, g, other});
  }
  return gain;
}

// Starts from the first open combination and gives every other factor the level that completes most; equal
// gains rotate with the number of the row, so that levels which no combination asks for vary too.
Row NextRow(std::span<const int> levels, const std::set<Combination>& open, int strength, int number) {
  Row row(levels.size(), -1);
  const Combination& seed = *open.begin();
  row[static_cast<std::size_t>(seed.first)] = seed.first_level;
  if (seed.second >= 0) row[static_cast<std::size_t>(seed.second)] = seed.second_level;
  for (int f = 0; f < static_cast<int>(levels.size()); ++f) {
    if (row[static_cast<std::size_t>(f)] >= 0) continue;
    int best_gain = -1, best = 0;
    const int count = levels[static_cast<std::size_t>(f)];
    for (int i = 0; i < count; ++i) {
      const int level = (number + f + i) % count;
      const int gain = Gain(row, f, level, open, strength);
      if (gain > best_gain) std::tie(best_gain, best) = std::pair(gain, level);
    }
    row[static_cast<std::size_t>(f)] = best;
  }
  return row;
}

}  // namespace

std::vector<Row> CoverLevels(std::span<const int> levels, int strength, const std::vector<Row>& always) {
  LOCKSTEP_CHECK(strength == 1 || strength == 2);
  std::set<Combination> open = AllCombinations(levels, strength);
  std::vector<Row> rows = always;
  for (const Row& row : always) Take(row, &open);
  while (!open.empty()) {
    rows.push_back(NextRow(levels, open, strength, static_cast<int>(rows.size())));
    Take(rows.back(), &open);
  }
  return rows;
}

}  // namespace lockstep::harness
