// How differential tests compare: memcmp, with a readable first difference; and whether a result proves
// anything.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/testing/problem.h"
#include "model/float_formats.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

inline double Readable(std::uint16_t bf16) { return static_cast<double>(BF16ToFloat(bf16)); }
inline double Readable(float value) { return static_cast<double>(value); }
inline double Readable(std::int32_t value) { return value; }
inline double Readable(std::byte value) { return std::to_integer<int>(value); }

// memcmp equality of two arrays, margins included; a failure names the first element that differs.
template <typename T>
testing::AssertionResult SameBits(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " elements, expected " << expected.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) == 0) continue;
    return testing::AssertionFailure() << "element " << i << " of " << got.size() << " is " << Readable(got[i])
                                       << ", expected " << Readable(expected[i]);
  }
  return testing::AssertionSuccess();
}

// The same of all arrays of an output.
template <typename... Arrays>
testing::AssertionResult SameOutputs(const std::tuple<Arrays...>& got, const std::tuple<Arrays...>& expected) {
  testing::AssertionResult result = testing::AssertionSuccess();
  int number = 0;
  const auto compare = [&](const auto& a, const auto& b) {
    const testing::AssertionResult same = SameBits(a, b);
    if (!same && result) result = testing::AssertionFailure() << "output " << number << ": " << same.message();
    ++number;
  };
  [&]<std::size_t... i>(std::index_sequence<i...>) { (compare(std::get<i>(got), std::get<i>(expected)), ...); }
  (std::index_sequence_for<Arrays...>());
  return result;
}

// Every implementation, with one thread and with three, leaves exactly `expected`.
template <typename Problem>
void ExpectEverywhere(const Problem& problem, const typename Problem::Output& expected, Profile profile,
                      const std::string& what) {
  for (const int threads : {1, 3}) {
    for (const Implementation& implementation : Implementations(profile, threads)) {
      EXPECT_TRUE(SameOutputs(RunOn(implementation, problem), expected))
          << what << ", " << implementation << ", threads " << threads;
    }
  }
}

// A result that is constant, mostly zero or not finite would prove little. Looks at the first n elements.
template <typename T>
testing::AssertionResult Trustworthy(const std::vector<T>& values, std::int64_t n) {
  std::int64_t zeros = 0, equal = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = Readable(values[static_cast<std::size_t>(i)]);
    if (!std::isfinite(value)) return testing::AssertionFailure() << "element " << i << " is not finite";
    zeros += value == 0;
    equal += value == Readable(values[0]);
  }
  if (2 * zeros > n) return testing::AssertionFailure() << zeros << " of " << n << " elements are zero";
  if (n > 1 && equal == n) return testing::AssertionFailure() << "all elements are equal";
  return testing::AssertionSuccess();
}

}  // namespace lockstep::kernels
