// What a token weighs when one is drawn, the same on CPU and device.
#pragma once

#include <cstdint>

#include "kernels/contract/exact_math.h"
#include "kernels/contract/float_ops.h"
#include "kernels/sampling/sampling.h"

namespace lockstep::kernels {

// Exponents below this weigh nothing: Exp of less is below 2^-40.
inline constexpr float kLowestExponent = -28.0f;

LOCKSTEP_HD float SamplingExponent(float logit, float best, const SamplingRow& row) { return contract::Div(contract::Sub(logit, best), row.temperature); }

// floor(2^40 share), or 0 for what min_p drops; share = Exp(exponent).
LOCKSTEP_HD std::uint64_t WeightOfShare(float share, const SamplingRow& row) {
  return share < row.min_p ? 0 : static_cast<std::uint64_t>(contract::Mul(share, 0x1p40f));
}
LOCKSTEP_HD std::uint64_t SamplingWeight(float exponent, const SamplingRow& row) {
  return exponent < kLowestExponent ? 0 : WeightOfShare(contract::Exp(exponent), row);
}

// Weight that the kept tokens reach at least: top_p of the total.
LOCKSTEP_HD std::uint64_t NucleusWeight(std::uint64_t total, float top_p) {
  if (top_p >= 1.0f) return total;
  const auto part = static_cast<std::uint64_t>(static_cast<double>(top_p) * static_cast<double>(total));
  return part < 1 ? 1 : part > total ? total : part;
}

// The weight that the drawn token is the first to pass: floor(draw kept / 2^53).
LOCKSTEP_HD std::uint64_t DrawnWeight(std::uint64_t draw, std::uint64_t kept) {
  const std::uint64_t draw_high = draw >> 32, draw_low = draw & 0xffffffffu, kept_high = kept >> 32, kept_low = kept & 0xffffffffu;
  const std::uint64_t low = draw_low * kept_low, middle = draw_high * kept_low + (low >> 32), cross = draw_low * kept_high + (middle & 0xffffffffu);
  const std::uint64_t top = draw_high * kept_high + (middle >> 32) + (cross >> 32), bottom = (cross << 32) | (low & 0xffffffffu);
  return (top << 11) | (bottom >> 53);
}

}  // namespace lockstep::kernels
