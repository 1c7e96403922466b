// Small sets of combinations: every value, or every pair of values, of several factors.
#pragma once

#include <span>
#include <vector>

namespace lockstep::harness {

// Rows of one level index per factor, 0 <= row[f] < levels[f]. `always` come first, as they are; the rows that
// follow make every level (strength 1) or every pair of levels of two factors (strength 2) appear. The same
// arguments give the same rows.
std::vector<std::vector<int>> CoverLevels(std::span<const int> levels, int strength,
                                          const std::vector<std::vector<int>>& always);

}  // namespace lockstep::harness
