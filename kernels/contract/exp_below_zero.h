// Exp of what is not above zero, bit for bit, in two thirds of the instructions: softmax weights, of which attention makes many. NaN gives a NaN.
#pragma once

#include "kernels/contract/float_ops.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// The larger one; NaN if a is.
LOCKSTEP_HD float MaxKeepingNan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a < b ? b : a;
#endif
}

// x <= 0 or NaN. The steps of Exp (exact_math.h), but 2^(k+64) by an addition to the exponent, then times 2^-64, which is where a subnormal result rounds.
LOCKSTEP_HD float ExpBelowZero(float x) {
  constexpr float kRoundingMagic = 0x1.8p23f + 64.0f;  // leaves k + 64 in the low bits
  constexpr float kLog2E = 0x1.715476p0f, kLn2High = 0x1.62e430p-1f, kLn2Low = -0x1.05c610p-29f;
  const float clamped = MaxKeepingNan(x, -110.0f);
  const float shifted = Fma(clamped, kLog2E, kRoundingMagic);
  const float k = Sub(shifted, kRoundingMagic);
  const float high = Fma(k, -kLn2High, clamped);
  const float r = Fma(k, -kLn2Low, high);
  const float r_low = Fma(k, -kLn2Low, Sub(high, r));
  float q = 0x1.6b7448p-13f;
  q = Fma(q, r, 0x1.6d40cap-10f);
  q = Fma(q, r, 0x1.113732p-7f);
  q = Fma(q, r, 0x1.5554f2p-5f);
  q = Fma(q, r, 0x1.55553cp-3f);
  q = Fma(q, r, 0.5f);
  const float one_plus_r = Add(1.0f, r);
  const float lost = Sub(r, Sub(one_plus_r, 1.0f));
  const float mantissa = Add(one_plus_r, Fma(Mul(r, r), q, Add(lost, r_low)));
  const auto scaled = static_cast<std::int32_t>(static_cast<std::uint32_t>(BitsOf(mantissa)) + (static_cast<std::uint32_t>(BitsOf(shifted)) << 23));
  return Mul(FloatOf(scaled), Fma(clamped, 0.0f, 0x1p-64f));  // the factor is NaN where x is
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
