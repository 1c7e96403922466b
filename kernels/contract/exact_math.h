// The elementary functions of the numerics contract (docs/numerics.md, section 9): the same bits on every CPU
// and GPU.
//
// Each is a template over F = float or F32x16 (include exact_math_vec.h for the latter) made of the operations
// of float_ops.h only. A NaN result is always the quiet NaN 0x7fc00000. Errors in ulp against double libm, and
// digests over all 2^32 inputs, are in golden/digests/exact_math.json.
#pragma once

#include "kernels/contract/float_ops.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// a, but with the one NaN of the contract: hardware differs in the sign and payload of the NaNs it makes.
template <class F>
LOCKSTEP_HD F CanonicalNan(F a) {
  return Select(IsNan(a), F(FloatOf(0x7fc00000)), a);
}

// e^x. Monotone; Exp(0) = 1; +inf above 88.72; below -87.34 gradual underflow to +0.
template <class F>
LOCKSTEP_HD F Exp(F x) {
  using I = IntOf<F>;
  constexpr float kRoundingMagic = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  constexpr float kLog2E = 0x1.715476p0f;
  constexpr float kLn2High = 0x1.62e430p-1f;
  constexpr float kLn2Low = -0x1.05c610p-29f;

  // x = k ln2 + r + r_low, |r| < 0.3466. Fma makes `high` exact; r_low keeps what rounding r loses.
  const F clamped = Min(Max(x, F(-110.0f)), F(100.0f));
  const F shifted = Fma(clamped, F(kLog2E), F(kRoundingMagic));
  const F k = Sub(shifted, F(kRoundingMagic));
  const F high = Fma(k, F(-kLn2High), clamped);
  const F r = Fma(k, F(-kLn2Low), high);
  const F r_low = Fma(k, F(-kLn2Low), Sub(high, r));

  // (e^r - 1 - r) / r^2, minimax.
  F q = F(0x1.6b7448p-13f);
  q = Fma(q, r, F(0x1.6d40cap-10f));
  q = Fma(q, r, F(0x1.113732p-7f));
  q = Fma(q, r, F(0x1.5554f2p-5f));
  q = Fma(q, r, F(0x1.55553cp-3f));
  q = Fma(q, r, F(0.5f));

  // 1 + r as an exact pair, so that only the last addition rounds at the size of the result.
  const F one_plus_r = Add(F(1.0f), r);
  const F lost = Sub(r, Sub(one_plus_r, F(1.0f)));
  const F tail = Fma(Mul(r, r), q, Add(lost, r_low));
  const F mantissa = Add(one_plus_r, tail);

  // Two factors, because 2^k itself may be out of range; the first product is exact, so a subnormal rounds
  // once.
  const I exponent = BitsOf(shifted) - BitsOf(F(kRoundingMagic));
  const I half = exponent >> 1;
  const F result = Mul(Mul(mantissa, PowerOfTwo(half)), PowerOfTwo(exponent - half));
  return Select(IsNan(x), F(FloatOf(0x7fc00000)), result);
}

// 1 / (1 + Exp(-x)). +0 below -88.73, where Exp(-x) overflows.
template <class F>
LOCKSTEP_HD F Sigmoid(F x) {
  return CanonicalNan(Div(F(1.0f), Add(F(1.0f), Exp(Negate(x)))));
}

// x / (1 + Exp(-x)). -0 below -88.73; NaN at -inf, which no finite activation reaches.
template <class F>
LOCKSTEP_HD F Silu(F x) {
  return CanonicalNan(Div(x, Add(F(1.0f), Exp(Negate(x)))));
}

// log(1 + u) for 0 <= u <= 1.
template <class F>
LOCKSTEP_HD F Log1pUnit(F u) {
  // With s = u/(2+u), z = s^2: log(1+u) = 2 atanh(s) = u + s (z P(z) - u), since 2s = u - su. P is minimax on
  // [0, 1/9].
  const F s = Div(u, Add(F(2.0f), u));
  const F z = Mul(s, s);
  F p = F(0x1.f08b0cp-3f);
  p = Fma(p, z, F(0x1.b72bb6p-3f));
  p = Fma(p, z, F(0x1.250510p-2f));
  p = Fma(p, z, F(0x1.9996d8p-2f));
  p = Fma(p, z, F(0x1.555558p-1f));
  return Fma(s, Fma(z, p, Negate(u)), u);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): full relative precision in the negative tail, x itself in the
// positive one.
template <class F>
LOCKSTEP_HD F Softplus(F x) {
  return CanonicalNan(Add(Max(x, F(0.0f)), Log1pUnit(Exp(Negate(Abs(x))))));
}

// sqrt(Softplus(x)), the router's score.
template <class F>
LOCKSTEP_HD F SqrtSoftplus(F x) {
  return CanonicalNan(Sqrt(Softplus(x)));
}

// 1 / sqrt(x), two correctly rounded operations. +-inf at +-0; NaN below 0.
template <class F>
LOCKSTEP_HD F Rsqrt(F x) {
  return CanonicalNan(Div(F(1.0f), Sqrt(x)));
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
