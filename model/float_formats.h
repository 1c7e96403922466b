// Storage formats of numbers and *the* rounding functions, each round-to-nearest-even. Source: IEEE 754, OCP
// MX. Header only: the reference, the kernels and the loaders all use these and nothing else.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lockstep {

inline float BF16ToFloat(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Nearest bfloat16, ties to even; overflow gives infinity; NaN stays NaN (quiet).
inline std::uint16_t FloatToBF16(float value) {
  std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  u += 0x7fffu + ((u >> 16) & 1u);
  return static_cast<std::uint16_t>(u >> 16);
}

inline float RoundToBF16(float value) { return BF16ToFloat(FloatToBF16(value)); }

inline float F16ToFloat(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// Nearest binary16, ties to even; beyond 65504 by half a step gives infinity; NaN stays NaN.
inline std::uint16_t FloatToF16(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (a < 0x38800000u) {  // below 2^-14: subnormal, step 2^-24
    // Adding 0.5 puts the units digit of the sum at 2^-24, so the fp32 addition does the rounding.
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float RoundToF16(float value) { return F16ToFloat(FloatToF16(value)); }

inline float E4M3ToFloat(std::uint8_t bits) {
  const float sign = (bits & 0x80u) ? -1.0f : 1.0f;
  const int exponent = (bits >> 3) & 0xf;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9f;
  return sign * static_cast<float>(8 + mantissa) *
         std::bit_cast<float>(static_cast<std::uint32_t>(exponent - 10 + 127) << 23);
}

// Nearest E4M3, ties to even, of a value already clamped to [-448, 448].
inline std::uint8_t FloatToE4M3(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint8_t sign = static_cast<std::uint8_t>((u >> 24) & 0x80u);
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (a < 0x3c800000u) {  // below 2^-6: subnormal, step 2^-9; 2^14 has its units digit at 2^-9
    const float shifted = std::bit_cast<float>(a) + 0x1p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000u));
  }
  const std::uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

// 2^(bits-127); bits 0 is 2^-127, an fp32 subnormal; 255 is NaN.
inline float E8M0ToFloat(std::uint8_t bits) {
  if (bits == 0) return 0x1p-127f;
  if (bits == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23);
}

// FP4 E2M1 code (0..15) to value: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and negatives.
inline float E2M1ToFloat(std::uint8_t code) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (code & 8u) ? -kValues[code & 7u] : kValues[code & 7u];
}

// Nearest E2M1 code, ties to the even code, of a value already clamped to [-6, 6]: 0.25->0,
// 0.75->1, 1.25->1, 1.75->2, 2.5->2, 3.5->4, 5->4. The sign of zero is kept.
inline std::uint8_t FloatToE2M1(float value) {
  const float a = std::fabs(value);
  std::uint8_t code = 0;
  if (a > 0.25f) code = 1;
  if (a >= 0.75f) code = 2;
  if (a > 1.25f) code = 3;
  if (a >= 1.75f) code = 4;
  if (a > 2.5f) code = 5;
  if (a >= 3.5f) code = 6;
  if (a > 5.0f) code = 7;
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 8u : 0u));
}

}  // namespace lockstep
