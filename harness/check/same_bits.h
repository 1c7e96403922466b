// Bitwise comparison of floats, with a difference that says where and how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lockstep::harness {

// The first element whose bits differ. `index` == the shorter size when only the sizes differ.
struct BitDifference {
  std::size_t index = 0;
  std::size_t got_size = 0, expected_size = 0;
  float got = 0.0f, expected = 0.0f;

  // "element 7 is 1.5 (0x3fc00000), expected 1.25 (0x3fa00000)", or the two sizes.
  std::string Describe() const;
};

// Empty when the spans are equal by memcmp. NaN equals NaN of the same bits; +0 differs from -0.
std::optional<BitDifference> FindDifference(std::span<const float> got, std::span<const float> expected);

}  // namespace lockstep::harness
