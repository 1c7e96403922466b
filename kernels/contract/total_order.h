// The order of every selection: larger value first, equal values by smaller index; -0 equals +0. NaNs have no
// place in it: whoever selects checks for them first and names the layer and the operation in its error.
#pragma once

#include <cstdint>

#include "kernels/contract/float_ops.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// Whether candidate a comes before candidate b. Neither value is NaN; equal indices mean the same candidate.
LOCKSTEP_HD bool Precedes(float value_a, std::int64_t index_a, float value_b, std::int64_t index_b) {
  return value_a > value_b || (value_a == value_b && index_a < index_b);
}

// A number that grows with the value, equal for equal values: for radix selection.
LOCKSTEP_HD std::uint32_t OrderKey(float value) {
  const auto bits = static_cast<std::uint32_t>(BitsOf(Add(value, 0.0f)));  // -0 + 0 = +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One number for a whole candidate: the largest comes first.
LOCKSTEP_HD std::uint64_t RankKey(float value, std::uint32_t index) {
  return (static_cast<std::uint64_t>(OrderKey(value)) << 32) | static_cast<std::uint32_t>(~index);
}

LOCKSTEP_HD std::uint32_t IndexOfRankKey(std::uint64_t key) { return ~static_cast<std::uint32_t>(key); }
// The value, +0 where it was -0.
LOCKSTEP_HD float ValueOfRankKey(std::uint64_t key) {
  const auto order = static_cast<std::uint32_t>(key >> 32);
  return FloatOf(static_cast<std::int32_t>((order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order));
}

// Whether any of the n values is NaN.
LOCKSTEP_HD bool AnyNan(const float* values, std::int64_t n) {
  bool any = false;
  for (std::int64_t i = 0; i < n; ++i) any = any || IsNan(values[i]);
  return any;
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
