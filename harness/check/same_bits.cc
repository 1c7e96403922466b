#include "harness/check/same_bits.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

namespace lockstep::harness {

std::string BitDifference::Describe() const {
  char text[160];
  if (got_size != expected_size) {
    std::snprintf(text, sizeof text, "%zu values, expected %zu", got_size, expected_size);
  } else {
    std::snprintf(text, sizeof text, "element %zu is %.9g (0x%08x), expected %.9g (0x%08x)", index,
                  static_cast<double>(got), std::bit_cast<std::uint32_t>(got), static_cast<double>(expected),
                  std::bit_cast<std::uint32_t>(expected));
  }
  return text;
}

std::optional<BitDifference> FindDifference(std::span<const float> got, std::span<const float> expected) {
  const std::size_t common = std::min(got.size(), expected.size());
  BitDifference difference{.index = common, .got_size = got.size(), .expected_size = expected.size()};
  if (common > 0 && std::memcmp(got.data(), expected.data(), common * sizeof(float)) != 0) {
    difference.index = 0;
    while (std::bit_cast<std::uint32_t>(got[difference.index]) ==
           std::bit_cast<std::uint32_t>(expected[difference.index]))
      ++difference.index;
    difference.got = got[difference.index];
    difference.expected = expected[difference.index];
  } else if (got.size() == expected.size()) {
    return std::nullopt;
  }
  return difference;
}

}  // namespace lockstep::harness
