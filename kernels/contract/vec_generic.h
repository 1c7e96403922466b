// vec.h on arrays: plain loops that any compiler and machine can run. Include vec.h, which documents the
// operations.
#pragma once

#include <cstdint>

#include "kernels/contract/float_ops.h"
#include "model/float_formats.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

struct F32x16 {
  F32x16() = default;
  LOCKSTEP_INLINE explicit F32x16(float a) {
    for (float& lane : v) lane = a;
  }
  float v[16];
};

struct I32x16 {
  I32x16() = default;
  LOCKSTEP_INLINE explicit I32x16(std::int32_t a) {
    for (std::int32_t& lane : v) lane = a;
  }
  std::int32_t v[16];
};

struct Mask16 {
  bool v[16];
};

// A vector whose lane i is lane(i).
template <class Vec, class LaneFunction>
LOCKSTEP_INLINE Vec Lanes(LaneFunction lane) {
  Vec result;
  for (int i = 0; i < 16; ++i) result.v[i] = lane(i);
  return result;
}

LOCKSTEP_INLINE std::int32_t WrapToInt(std::uint32_t a) { return static_cast<std::int32_t>(a); }
LOCKSTEP_INLINE std::uint32_t Unsigned(std::int32_t a) { return static_cast<std::uint32_t>(a); }

LOCKSTEP_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  return Lanes<Mask16>([&](int i) { return a.v[i] && b.v[i]; });
}
LOCKSTEP_INLINE Mask16 operator|(Mask16 a, Mask16 b) {
  return Lanes<Mask16>([&](int i) { return a.v[i] || b.v[i]; });
}
LOCKSTEP_INLINE Mask16 operator~(Mask16 a) {
  return Lanes<Mask16>([&](int i) { return !a.v[i]; });
}
LOCKSTEP_INLINE std::uint32_t BitsOf(Mask16 a) {
  std::uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<std::uint32_t>(a.v[i]) << i;
  return bits;
}
LOCKSTEP_INLINE Mask16 FirstLanes(int n) {
  return Lanes<Mask16>([&](int i) { return i < n; });
}

LOCKSTEP_INLINE F32x16 LoadN(const float* p, int n) {
  return Lanes<F32x16>([&](int i) { return i < n ? p[i] : 0.0f; });
}
LOCKSTEP_INLINE F32x16 Load(const float* p) {
  return Lanes<F32x16>([&](int i) { return p[i]; });
}
LOCKSTEP_INLINE void StoreN(F32x16 a, float* p, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
LOCKSTEP_INLINE void Store(F32x16 a, float* p) { StoreN(a, p, 16); }

template <class T>
LOCKSTEP_INLINE I32x16 LoadExtended(const T* p) {
  return Lanes<I32x16>([&](int i) { return static_cast<std::int32_t>(p[i]); });
}
LOCKSTEP_INLINE I32x16 LoadI32(const std::int32_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE I32x16 LoadI8(const std::int8_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE I32x16 LoadU8(const std::uint8_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE I32x16 LoadI16(const std::int16_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE I32x16 LoadU16(const std::uint16_t* p) { return LoadExtended(p); }
template <class T>
LOCKSTEP_INLINE void StoreLow(I32x16 a, T* p) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<T>(a.v[i]);
}
LOCKSTEP_INLINE void StoreI32(I32x16 a, std::int32_t* p) { StoreLow(a, p); }
LOCKSTEP_INLINE void StoreI16(I32x16 a, std::int16_t* p) { StoreLow(a, p); }
LOCKSTEP_INLINE void StoreI8(I32x16 a, std::int8_t* p) { StoreLow(a, p); }

LOCKSTEP_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  return Lanes<F32x16>([&](int i) { return a.v[i] + b.v[i]; });
}
LOCKSTEP_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  return Lanes<F32x16>([&](int i) { return a.v[i] - b.v[i]; });
}
LOCKSTEP_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  return Lanes<F32x16>([&](int i) { return a.v[i] * b.v[i]; });
}
LOCKSTEP_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  return Lanes<F32x16>([&](int i) { return a.v[i] / b.v[i]; });
}
LOCKSTEP_INLINE F32x16 Sqrt(F32x16 a) {
  return Lanes<F32x16>([&](int i) { return Sqrt(a.v[i]); });
}
LOCKSTEP_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return Lanes<F32x16>([&](int i) { return Fma(a.v[i], b.v[i], c.v[i]); });
}
LOCKSTEP_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return Lanes<F32x16>([&](int i) { return Min(a.v[i], b.v[i]); });
}
LOCKSTEP_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return Lanes<F32x16>([&](int i) { return Max(a.v[i], b.v[i]); });
}

LOCKSTEP_INLINE Mask16 Less(F32x16 a, F32x16 b) {
  return Lanes<Mask16>([&](int i) { return a.v[i] < b.v[i]; });
}
LOCKSTEP_INLINE Mask16 LessEqual(F32x16 a, F32x16 b) {
  return Lanes<Mask16>([&](int i) { return a.v[i] <= b.v[i]; });
}
LOCKSTEP_INLINE Mask16 Equal(F32x16 a, F32x16 b) {
  return Lanes<Mask16>([&](int i) { return a.v[i] == b.v[i]; });
}
LOCKSTEP_INLINE Mask16 IsNan(F32x16 a) {
  return Lanes<Mask16>([&](int i) { return IsNan(a.v[i]); });
}
LOCKSTEP_INLINE F32x16 Select(Mask16 m, F32x16 yes, F32x16 no) {
  return Lanes<F32x16>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}

LOCKSTEP_INLINE I32x16 BitsOf(F32x16 a) {
  return Lanes<I32x16>([&](int i) { return BitsOf(a.v[i]); });
}
LOCKSTEP_INLINE F32x16 FloatOf(I32x16 a) {
  return Lanes<F32x16>([&](int i) { return FloatOf(a.v[i]); });
}
LOCKSTEP_INLINE F32x16 ToFloat(I32x16 a) {
  return Lanes<F32x16>([&](int i) { return static_cast<float>(a.v[i]); });
}
LOCKSTEP_INLINE std::int32_t TruncateToInt(float a) {
  return Abs(a) < 0x1p31f ? static_cast<std::int32_t>(a) : INT32_MIN;
}
LOCKSTEP_INLINE I32x16 TruncateToInt(F32x16 a) {
  return Lanes<I32x16>([&](int i) { return TruncateToInt(a.v[i]); });
}
// The cleared bit is the highest that 24 bits do not hold: after that, rounding to nearest rounds down.
LOCKSTEP_INLINE F32x16 TruncateUnsignedToFloat(I32x16 a) {
  return Lanes<F32x16>([&](int i) { return static_cast<float>(Unsigned(a.v[i]) & ~(Unsigned(a.v[i]) >> 24)); });
}
// Nearest integer, ties to even. The subtraction of the truncated value is exact.
LOCKSTEP_INLINE std::int32_t RoundToInt(float a) {
  const std::int32_t truncated = TruncateToInt(a);
  if (truncated == INT32_MIN) return truncated;
  const float rest = Abs(a - static_cast<float>(truncated));
  const bool away = rest > 0.5f || (rest == 0.5f && (truncated & 1) != 0);
  return away ? truncated + (a < 0.0f ? -1 : 1) : truncated;
}
LOCKSTEP_INLINE I32x16 RoundToInt(F32x16 a) {
  return Lanes<I32x16>([&](int i) { return RoundToInt(a.v[i]); });
}

LOCKSTEP_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return WrapToInt(Unsigned(a.v[i]) + Unsigned(b.v[i])); });
}
LOCKSTEP_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return WrapToInt(Unsigned(a.v[i]) - Unsigned(b.v[i])); });
}
LOCKSTEP_INLINE I32x16 operator*(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return WrapToInt(Unsigned(a.v[i]) * Unsigned(b.v[i])); });
}
LOCKSTEP_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return a.v[i] & b.v[i]; });
}
LOCKSTEP_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return a.v[i] | b.v[i]; });
}
LOCKSTEP_INLINE I32x16 operator^(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return a.v[i] ^ b.v[i]; });
}
LOCKSTEP_INLINE I32x16 operator<<(I32x16 a, int count) {
  return Lanes<I32x16>([&](int i) { return WrapToInt(Unsigned(a.v[i]) << count); });
}
LOCKSTEP_INLINE I32x16 operator>>(I32x16 a, int count) {
  return Lanes<I32x16>([&](int i) { return a.v[i] >> count; });
}
LOCKSTEP_INLINE I32x16 ShiftLeft(I32x16 a, I32x16 n) {
  return Lanes<I32x16>([&](int i) { return WrapToInt(Unsigned(a.v[i]) << n.v[i]); });
}
LOCKSTEP_INLINE I32x16 ShiftRight(I32x16 a, I32x16 n) {
  return Lanes<I32x16>([&](int i) { return a.v[i] >> n.v[i]; });
}
LOCKSTEP_INLINE I32x16 ShiftRightLogical(I32x16 a, I32x16 n) {
  return Lanes<I32x16>([&](int i) { return WrapToInt(Unsigned(a.v[i]) >> n.v[i]); });
}
LOCKSTEP_INLINE std::int32_t Min(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
LOCKSTEP_INLINE std::int32_t Max(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
LOCKSTEP_INLINE I32x16 Min(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return Min(a.v[i], b.v[i]); });
}
LOCKSTEP_INLINE I32x16 Max(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) { return Max(a.v[i], b.v[i]); });
}
// A word from its two halves.
LOCKSTEP_INLINE std::int32_t JoinPair(std::int32_t low, std::int32_t high) {
  return WrapToInt((Unsigned(high) << 16) | (Unsigned(low) & 0xffffu));
}
LOCKSTEP_INLINE std::int32_t LowOfPair(std::int32_t pair) { return static_cast<std::int16_t>(pair); }
LOCKSTEP_INLINE std::int32_t HighOfPair(std::int32_t pair) { return pair >> 16; }
LOCKSTEP_INLINE I32x16 AddPairs16(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) {
    return JoinPair(LowOfPair(a.v[i]) + LowOfPair(b.v[i]), HighOfPair(a.v[i]) + HighOfPair(b.v[i]));
  });
}
LOCKSTEP_INLINE I32x16 MaxPairs16(I32x16 a, I32x16 b) {
  return Lanes<I32x16>([&](int i) {
    const std::int32_t low = Max(LowOfPair(a.v[i]), LowOfPair(b.v[i]));
    return JoinPair(low, Max(HighOfPair(a.v[i]), HighOfPair(b.v[i])));
  });
}
LOCKSTEP_INLINE Mask16 Equal(I32x16 a, I32x16 b) {
  return Lanes<Mask16>([&](int i) { return a.v[i] == b.v[i]; });
}
LOCKSTEP_INLINE Mask16 Less(I32x16 a, I32x16 b) {
  return Lanes<Mask16>([&](int i) { return a.v[i] < b.v[i]; });
}
LOCKSTEP_INLINE I32x16 Select(Mask16 m, I32x16 yes, I32x16 no) {
  return Lanes<I32x16>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}

LOCKSTEP_INLINE F32x16 LoadF16(const std::uint16_t* p) {
  return Lanes<F32x16>([&](int i) { return F16ToFloat(p[i]); });
}
LOCKSTEP_INLINE void StoreF16(F32x16 a, std::uint16_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = FloatToF16(a.v[i]);
}
LOCKSTEP_INLINE F32x16 RoundToF16(F32x16 a) {
  return Lanes<F32x16>([&](int i) { return lockstep::RoundToF16(a.v[i]); });
}

LOCKSTEP_INLINE float Fold(F32x16 a) {
  for (int stride = 8; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) a.v[i] = a.v[i] + a.v[i + stride];
  }
  return a.v[0];
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
