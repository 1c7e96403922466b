// The single operations that the contract is made of, on scalars, for host and device: each is correctly
// rounded to nearest even and keeps subnormals. On the device they are intrinsics, which are never fused or
// approximated (flush-to-zero would still reach them: device code must not be built with it).
// vec.h has the same names on 16 lanes, so that exact_math.h is written once for both.
#pragma once

#include <cstdint>

#include "kernels/contract/isa.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// The int32 companion of a float type, for code that works on scalars and on lanes.
template <class F>
struct IntOfFloat;
template <>
struct IntOfFloat<float> {
  using Type = std::int32_t;
};
template <class F>
using IntOf = typename IntOfFloat<F>::Type;

LOCKSTEP_HD float Add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

LOCKSTEP_HD float Sub(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

LOCKSTEP_HD float Mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

LOCKSTEP_HD float Div(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// a*b + c, rounded once.
LOCKSTEP_HD float Fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

LOCKSTEP_HD float Sqrt(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

LOCKSTEP_HD std::int32_t BitsOf(float a) {
#if defined(__CUDA_ARCH__)
  return __float_as_int(a);
#else
  return __builtin_bit_cast(std::int32_t, a);
#endif
}

LOCKSTEP_HD float FloatOf(std::int32_t bits) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

LOCKSTEP_HD bool Less(float a, float b) { return a < b; }
LOCKSTEP_HD bool IsNan(float a) { return !(a == a); }
LOCKSTEP_HD float Select(bool condition, float yes, float no) { return condition ? yes : no; }

// The second operand if either is NaN or both are zero.
LOCKSTEP_HD float Min(float a, float b) { return a < b ? a : b; }
LOCKSTEP_HD float Max(float a, float b) { return a > b ? a : b; }

LOCKSTEP_HD float Negate(float a) { return FloatOf(BitsOf(a) ^ INT32_MIN); }
LOCKSTEP_HD float Abs(float a) { return FloatOf(BitsOf(a) & INT32_MAX); }

// 2^k for -126 <= k <= 127; I is int32 or I32x16.
template <class I>
LOCKSTEP_HD auto PowerOfTwo(I k) {
  return FloatOf((k + I(127)) << 23);
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
