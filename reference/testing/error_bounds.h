// Bounds on the distance of contract results from exact ones, as formulas in the depth of the sums. u is the
// unit roundoff.
#pragma once

#include <cstdint>

#include "reference/testing/page_arithmetic.h"

namespace lockstep::reference {

inline constexpr double kUnitFp32 = 0x1p-24;
inline constexpr double kUnitBf16 = 0x1p-8;

// gamma_d = d u / (1 - d u): relative error of a result that passes through d roundings to nearest fp32.
inline double Gamma(double depth) { return depth * kUnitFp32 / (1.0 - depth * kUnitFp32); }

// Roundings that a product of a family F dot passes through: its lane's fma chain and the fold of 128.
inline double DepthF(std::int64_t n) { return static_cast<double>((n + 127) / 128 + 7); }

// Relative to sum |a_k b_k|: error of a family H chain over n products of normal operands.
//   MMA block: each of its KB + 1 terms loses less than 2^(E-F), RZ32 less than 2^-23 of the result, and 2^E is
//   at most the largest term. A term is a product or the accumulator, whose magnitude is at most (1 + earlier
//   errors) sum |a_k b_k|. sm70jit: a product passes through at most 3 additions in its block and one a block.
//   fma: 16 lanes and a fold of 16.
inline double ChainBound(Profile profile, std::int64_t n) {
  if (profile == Profile::kFma) return Gamma(static_cast<double>((n + 15) / 16 + 4));
  const page::BlockRule rule = page::RuleOf(profile);
  const auto blocks = static_cast<double>((n + rule.products - 1) / rule.products);
  if (profile == Profile::kSm70Jit) return Gamma(blocks + 3);
  const double lost =
      (rule.products + 1) / static_cast<double>(std::int64_t{1} << rule.fraction_bits) + 0x1p-23;
  return blocks * lost * (1.0 + blocks * lost);
}

// The same for an H linear: the longest segment's chain, then two additions.
inline double LinearBound(Profile profile, std::int64_t k_length) {
  const std::int64_t longest = ((k_length + 127) / 128 + 3) / 4 * 128;
  const double chain = ChainBound(profile, longest < k_length ? longest : k_length);
  return chain + Gamma(2) * (1.0 + chain);
}

}  // namespace lockstep::reference
