// Comparison with truth: double precision and a bound that is a formula of the case.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/testing/comparison.h"
#include "reference/testing/error_bounds.h"

namespace lockstep::kernels {

using reference::Gamma;

// Relative errors of the elementary functions in fp32 roundings: twice the ulp of
// golden/digests/exact_math.json.
inline constexpr double kExpRoundings = 1.6, kSigmoidRoundings = 5.0, kSqrtSoftplusRoundings = 3.0,
                        kRsqrtRoundings = 3.0;

struct Approximation {
  double truth = 0;
  double bound = 0;  // on the distance from truth
};

// The same after rounding to bf16.
inline Approximation RoundedToBF16(Approximation value) {
  const double largest = std::fabs(value.truth) + value.bound;
  return {value.truth, value.bound + reference::kUnitBf16 * largest + 0x1p-134};
}

// `value` moved away from zero by so many spacings of its format.
inline std::uint16_t Moved(std::uint16_t bf16, int spacings) {
  return static_cast<std::uint16_t>(bf16 + spacings);
}
inline float Moved(float value, int spacings) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) + static_cast<std::uint32_t>(spacings));
}

// The first expected.size() elements are within their bounds; and the bounds are such that nine in ten elements
// would not be, moved by `spacings`.
template <typename T>
void ExpectWithin(const std::vector<T>& got, const std::vector<Approximation>& expected, int spacings) {
  std::size_t caught = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [truth, bound] = expected[i];
    ASSERT_LE(std::fabs(Readable(got[i]) - truth), bound) << "element " << i << ", truth " << truth;
    caught += std::fabs(Readable(Moved(got[i], spacings)) - truth) > bound &&
              std::fabs(Readable(Moved(got[i], -spacings)) - truth) > bound;
  }
  EXPECT_GE(10 * caught, 9 * expected.size())
      << "bounds that let " << expected.size() - caught << " perturbed elements pass";
}

}  // namespace lockstep::kernels
