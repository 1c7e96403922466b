// The official models' activation quantizers (docs/numerics.md section 5) and the int8/int16 activations of mul1 linears (section 4).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "model/float_formats.h"

namespace lockstep::reference {

// 2^ceil(log2(x)) on the bit pattern of a positive normal fp32.
inline float PowerOfTwoAtLeast(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) ? 1u : 0u);
  return std::bit_cast<float>(exponent << 23);
}

template <typename Real>
Real MaxAbs(const Real* x, std::int64_t n) {
  Real a = 0;
  for (std::int64_t i = 0; i < n; ++i) a = std::max(a, std::fabs(x[i]));
  return a;
}

// FP8 codes (as values) of x[n], n at most one block; returns the scale, a power of two.
template <typename Real>
float ActQuant8Block(const Real* x, std::int64_t n, Real* codes) {
  const float a = std::max(static_cast<float>(MaxAbs(x, n)), 1e-4f);
  const float scale = PowerOfTwoAtLeast(a * static_cast<float>(1.0 / 448.0));
  for (std::int64_t i = 0; i < n; ++i) {
    const float scaled = static_cast<float>(x[i] / static_cast<Real>(scale));
    codes[i] = E4M3ToFloat(FloatToE4M3(std::clamp(scaled, -448.0f, 448.0f)));
  }
  return scale;
}

enum class Fp4Scale { kE8M0, kE4M3 };

// FP4 codes (as values) of x[n], n at most one block; returns the scale.
template <typename Real>
float ActQuant4Block(const Real* x, std::int64_t n, Fp4Scale kind, Real* codes) {
  const float a = static_cast<float>(MaxAbs(x, n));
  const float scale = kind == Fp4Scale::kE8M0
                          ? PowerOfTwoAtLeast(std::max(a, 6.0f * 0x1p-126f) * static_cast<float>(1.0 / 6.0))
                          : E4M3ToFloat(FloatToE4M3(std::min(std::max(a, 6.0f * 0x1p-9f) / 6.0f, 448.0f)));
  for (std::int64_t i = 0; i < n; ++i) {
    const float scaled = static_cast<float>(x[i] / static_cast<Real>(scale));
    codes[i] = E2M1ToFloat(FloatToE2M1(std::clamp(scaled, -6.0f, 6.0f)));
  }
  return scale;
}

// In place: x[n] becomes code * scale, blocks of `block` (the last may be short). The products are exact in bf16.
template <typename Real>
void FakeQuant8(Real* x, std::int64_t n, std::int64_t block) {
  for (std::int64_t i = 0; i < n; i += block) {
    const std::int64_t width = std::min(block, n - i);
    const float scale = ActQuant8Block(x + i, width, x + i);
    for (std::int64_t k = i; k < i + width; ++k) x[k] *= scale;
  }
}

template <typename Real>
void FakeQuant4(Real* x, std::int64_t n, std::int64_t block, Fp4Scale kind) {
  for (std::int64_t i = 0; i < n; i += block) {
    const std::int64_t width = std::min(block, n - i);
    const float scale = ActQuant4Block(x + i, width, kind, x + i);
    for (std::int64_t k = i; k < i + width; ++k) x[k] *= scale;
  }
}

// Integer codes in [-limit, limit] of one 128-block of transformed activations; returns the scale (0: the whole block is zero).
template <typename Real>
Real QuantizeActivations(const Real* t, std::int64_t n, int limit, std::int32_t* codes) {
  const Real a = MaxAbs(t, n);
  if (a < static_cast<Real>(0x1p-100)) {
    std::fill(codes, codes + n, 0);
    return 0;
  }
  const Real inverse = static_cast<Real>(limit) / a;
  for (std::int64_t i = 0; i < n; ++i) {
    const Real rounded = std::nearbyint(t[i] * inverse);
    codes[i] = static_cast<std::int32_t>(std::clamp<Real>(rounded, static_cast<Real>(-limit), static_cast<Real>(limit)));
  }
  return a / static_cast<Real>(limit);
}

// Butterfly of a block whose size is a power of two: strides 1, 2, 4, ...; unscaled.
template <typename Real>
void Butterfly(Real* x, std::int64_t n) {
  for (std::int64_t stride = 1; stride < n; stride *= 2) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (i & stride) continue;
      const Real a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

}  // namespace lockstep::reference
