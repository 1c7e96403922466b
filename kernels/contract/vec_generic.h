// vec.h on four 16-byte vectors of the compiler's own kind, which every machine has. Include vec.h, which
// documents the operations. What those vectors lack (fma, square roots, binary16) goes lane by lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/contract/float_ops.h"
#include "model/float_formats.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

using F32x4 = float __attribute__((vector_size(16)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));
using U32x4 = std::uint32_t __attribute__((vector_size(16)));
using I16x8 = std::int16_t __attribute__((vector_size(16)));
using U16x8 = std::uint16_t __attribute__((vector_size(16)));

struct F32x16 {
  F32x16() = default;
  LOCKSTEP_INLINE explicit F32x16(float a) {
    for (F32x4& quad : q) quad = F32x4{a, a, a, a};
  }
  F32x4 q[4];
};

struct I32x16 {
  I32x16() = default;
  LOCKSTEP_INLINE explicit I32x16(std::int32_t a) {
    for (I32x4& quad : q) quad = I32x4{a, a, a, a};
  }
  I32x4 q[4];
};

// All bits of a lane set or clear.
struct Mask16 {
  I32x4 q[4];
};

// A vector whose quad i is quad(i), or whose lane i is lane(i).
template <class Vec, class QuadFunction>
LOCKSTEP_INLINE Vec Quads(QuadFunction quad) {
  Vec result;
  for (int i = 0; i < 4; ++i) result.q[i] = quad(i);
  return result;
}
template <class Vec, class LaneFunction>
LOCKSTEP_INLINE Vec Lanes(LaneFunction lane) {
  return Quads<Vec>([&](int i) {
    return decltype(Vec::q[0] + Vec::q[0]){lane(4 * i), lane(4 * i + 1), lane(4 * i + 2), lane(4 * i + 3)};
  });
}
template <class Vec>
LOCKSTEP_INLINE auto Lane(const Vec& a, int i) {
  return a.q[i / 4][i % 4];
}

LOCKSTEP_INLINE U32x4 Unsigned(I32x4 a) { return reinterpret_cast<U32x4>(a); }
LOCKSTEP_INLINE I32x4 Signed(U32x4 a) { return reinterpret_cast<I32x4>(a); }
LOCKSTEP_INLINE I32x4 BitsOf(F32x4 a) { return reinterpret_cast<I32x4>(a); }
LOCKSTEP_INLINE F32x4 FloatOf(I32x4 a) { return reinterpret_cast<F32x4>(a); }
LOCKSTEP_INLINE I32x4 Blend(I32x4 mask, I32x4 yes, I32x4 no) { return (mask & yes) | (~mask & no); }
LOCKSTEP_INLINE F32x4 Blend(I32x4 mask, F32x4 yes, F32x4 no) {
  return FloatOf(Blend(mask, BitsOf(yes), BitsOf(no)));
}
LOCKSTEP_INLINE F32x4 ToFloat(I32x4 a) { return __builtin_convertvector(a, F32x4); }

LOCKSTEP_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  return Quads<Mask16>([&](int i) { return a.q[i] & b.q[i]; });
}
LOCKSTEP_INLINE Mask16 operator|(Mask16 a, Mask16 b) {
  return Quads<Mask16>([&](int i) { return a.q[i] | b.q[i]; });
}
LOCKSTEP_INLINE Mask16 operator~(Mask16 a) {
  return Quads<Mask16>([&](int i) { return ~a.q[i]; });
}
LOCKSTEP_INLINE std::uint32_t BitsOf(Mask16 a) {
  std::uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<std::uint32_t>(Lane(a, i) & 1) << i;
  return bits;
}
LOCKSTEP_INLINE Mask16 FirstLanes(int n) {
  return Lanes<Mask16>([&](int i) { return i < n ? -1 : 0; });
}

LOCKSTEP_INLINE F32x16 LoadN(const float* p, int n) {
  F32x16 result(0.0f);
  std::memcpy(result.q, p, static_cast<std::size_t>(n) * sizeof(float));
  return result;
}
LOCKSTEP_INLINE F32x16 Load(const float* p) {
  F32x16 result;
  std::memcpy(result.q, p, sizeof(result.q));
  return result;
}
LOCKSTEP_INLINE void StoreN(F32x16 a, float* p, int n) {
  std::memcpy(p, a.q, static_cast<std::size_t>(n) * sizeof(float));
}
LOCKSTEP_INLINE void Store(F32x16 a, float* p) { std::memcpy(p, a.q, sizeof(a.q)); }

LOCKSTEP_INLINE I32x16 LoadI32(const std::int32_t* p) {
  I32x16 result;
  std::memcpy(result.q, p, sizeof(result.q));
  return result;
}
LOCKSTEP_INLINE void StoreI32(I32x16 a, std::int32_t* p) { std::memcpy(p, a.q, sizeof(a.q)); }
template <class T>
LOCKSTEP_INLINE I32x16 LoadExtended(const T* p) {
  return Lanes<I32x16>([&](int i) { return static_cast<std::int32_t>(p[i]); });
}
LOCKSTEP_INLINE I32x16 LoadI8(const std::int8_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE I32x16 LoadU8(const std::uint8_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE I32x16 LoadI16(const std::int16_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE I32x16 LoadU16(const std::uint16_t* p) { return LoadExtended(p); }
LOCKSTEP_INLINE void StoreI16(I32x16 a, std::int16_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int16_t>(Lane(a, i));
}
LOCKSTEP_INLINE void StoreI8(I32x16 a, std::int8_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(Lane(a, i));
}

LOCKSTEP_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  return Quads<F32x16>([&](int i) { return a.q[i] + b.q[i]; });
}
LOCKSTEP_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  return Quads<F32x16>([&](int i) { return a.q[i] - b.q[i]; });
}
LOCKSTEP_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  return Quads<F32x16>([&](int i) { return a.q[i] * b.q[i]; });
}
LOCKSTEP_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  return Quads<F32x16>([&](int i) { return a.q[i] / b.q[i]; });
}
LOCKSTEP_INLINE F32x16 Sqrt(F32x16 a) {
  return Lanes<F32x16>([&](int i) { return Sqrt(Lane(a, i)); });
}
LOCKSTEP_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return Lanes<F32x16>([&](int i) { return Fma(Lane(a, i), Lane(b, i), Lane(c, i)); });
}
LOCKSTEP_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return Quads<F32x16>([&](int i) { return Blend(a.q[i] < b.q[i], a.q[i], b.q[i]); });
}
LOCKSTEP_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return Quads<F32x16>([&](int i) { return Blend(a.q[i] > b.q[i], a.q[i], b.q[i]); });
}

LOCKSTEP_INLINE Mask16 Less(F32x16 a, F32x16 b) {
  return Quads<Mask16>([&](int i) { return a.q[i] < b.q[i]; });
}
LOCKSTEP_INLINE Mask16 LessEqual(F32x16 a, F32x16 b) {
  return Quads<Mask16>([&](int i) { return a.q[i] <= b.q[i]; });
}
LOCKSTEP_INLINE Mask16 Equal(F32x16 a, F32x16 b) {
  return Quads<Mask16>([&](int i) { return a.q[i] == b.q[i]; });
}
LOCKSTEP_INLINE Mask16 IsNan(F32x16 a) {
  return Quads<Mask16>([&](int i) { return ~(a.q[i] == a.q[i]); });
}
LOCKSTEP_INLINE F32x16 Select(Mask16 m, F32x16 yes, F32x16 no) {
  return Quads<F32x16>([&](int i) { return Blend(m.q[i], yes.q[i], no.q[i]); });
}

LOCKSTEP_INLINE I32x16 BitsOf(F32x16 a) {
  return Quads<I32x16>([&](int i) { return BitsOf(a.q[i]); });
}
LOCKSTEP_INLINE F32x16 FloatOf(I32x16 a) {
  return Quads<F32x16>([&](int i) { return FloatOf(a.q[i]); });
}
LOCKSTEP_INLINE F32x16 ToFloat(I32x16 a) {
  return Quads<F32x16>([&](int i) { return ToFloat(a.q[i]); });
}
// Out of range and NaN become INT32_MIN before the conversion, which C++ does not define for them.
LOCKSTEP_INLINE I32x4 TruncateToInt(F32x4 a) {
  const F32x4 limit = {0x1p31f, 0x1p31f, 0x1p31f, 0x1p31f};
  return __builtin_convertvector(Blend((a < limit) & (a > -limit), a, -limit), I32x4);
}
LOCKSTEP_INLINE I32x16 TruncateToInt(F32x16 a) {
  return Quads<I32x16>([&](int i) { return TruncateToInt(a.q[i]); });
}
// One step away from the truncated value if the rest, which is exact, is above a half, or a half and the value
// odd.
LOCKSTEP_INLINE I32x4 RoundToInt(F32x4 a) {
  const I32x4 truncated = TruncateToInt(a);
  const F32x4 rest = FloatOf(BitsOf(a - ToFloat(truncated)) & INT32_MAX);
  const I32x4 away = (rest > 0.5f) | ((rest == 0.5f) & -(truncated & 1));
  const I32x4 step = (BitsOf(a) >> 31) | 1;
  return truncated + (away & ~(truncated == INT32_MIN) & step);
}
LOCKSTEP_INLINE I32x16 RoundToInt(F32x16 a) {
  return Quads<I32x16>([&](int i) { return RoundToInt(a.q[i]); });
}
// The cleared bit is the highest that 24 bits do not hold: after that, rounding to nearest rounds down.
LOCKSTEP_INLINE F32x16 TruncateUnsignedToFloat(I32x16 a) {
  return Quads<F32x16>([&](int i) {
    const U32x4 kept = Unsigned(a.q[i]) & ~(Unsigned(a.q[i]) >> 24);
    return ToFloat(Signed(kept >> 16)) * 65536.0f + ToFloat(Signed(kept & 0xffffu));
  });
}

LOCKSTEP_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return Signed(Unsigned(a.q[i]) + Unsigned(b.q[i])); });
}
LOCKSTEP_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return Signed(Unsigned(a.q[i]) - Unsigned(b.q[i])); });
}
LOCKSTEP_INLINE I32x16 operator*(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return Signed(Unsigned(a.q[i]) * Unsigned(b.q[i])); });
}
LOCKSTEP_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return a.q[i] & b.q[i]; });
}
LOCKSTEP_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return a.q[i] | b.q[i]; });
}
LOCKSTEP_INLINE I32x16 operator^(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return a.q[i] ^ b.q[i]; });
}
LOCKSTEP_INLINE I32x16 operator<<(I32x16 a, int count) {
  return Quads<I32x16>([&](int i) { return Signed(Unsigned(a.q[i]) << count); });
}
LOCKSTEP_INLINE I32x16 operator>>(I32x16 a, int count) {
  return Quads<I32x16>([&](int i) { return a.q[i] >> count; });
}
LOCKSTEP_INLINE I32x16 ShiftLeft(I32x16 a, I32x16 n) {
  return Quads<I32x16>([&](int i) { return Signed(Unsigned(a.q[i]) << Unsigned(n.q[i])); });
}
LOCKSTEP_INLINE I32x16 ShiftRight(I32x16 a, I32x16 n) {
  return Quads<I32x16>([&](int i) { return a.q[i] >> n.q[i]; });
}
LOCKSTEP_INLINE I32x16 ShiftRightLogical(I32x16 a, I32x16 n) {
  return Quads<I32x16>([&](int i) { return Signed(Unsigned(a.q[i]) >> Unsigned(n.q[i])); });
}
LOCKSTEP_INLINE I32x16 Min(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return Blend(a.q[i] < b.q[i], a.q[i], b.q[i]); });
}
LOCKSTEP_INLINE I32x16 Max(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) { return Blend(a.q[i] > b.q[i], a.q[i], b.q[i]); });
}
LOCKSTEP_INLINE I32x16 AddPairs16(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) {
    return reinterpret_cast<I32x4>(reinterpret_cast<U16x8>(a.q[i]) + reinterpret_cast<U16x8>(b.q[i]));
  });
}
LOCKSTEP_INLINE I32x16 MaxPairs16(I32x16 a, I32x16 b) {
  return Quads<I32x16>([&](int i) {
    const I32x4 greater =
        reinterpret_cast<I32x4>(reinterpret_cast<I16x8>(a.q[i]) > reinterpret_cast<I16x8>(b.q[i]));
    return Blend(greater, a.q[i], b.q[i]);
  });
}
LOCKSTEP_INLINE Mask16 Equal(I32x16 a, I32x16 b) {
  return Quads<Mask16>([&](int i) { return a.q[i] == b.q[i]; });
}
LOCKSTEP_INLINE Mask16 Less(I32x16 a, I32x16 b) {
  return Quads<Mask16>([&](int i) { return a.q[i] < b.q[i]; });
}
LOCKSTEP_INLINE I32x16 Select(Mask16 m, I32x16 yes, I32x16 no) {
  return Quads<I32x16>([&](int i) { return Blend(m.q[i], yes.q[i], no.q[i]); });
}

LOCKSTEP_INLINE F32x16 LoadF16(const std::uint16_t* p) {
  return Lanes<F32x16>([&](int i) { return F16ToFloat(p[i]); });
}
LOCKSTEP_INLINE void StoreF16(F32x16 a, std::uint16_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = FloatToF16(Lane(a, i));
}
LOCKSTEP_INLINE F32x16 RoundToF16(F32x16 a) {
  return Lanes<F32x16>([&](int i) { return lockstep::RoundToF16(Lane(a, i)); });
}

LOCKSTEP_INLINE float Fold(F32x16 a) {
  const F32x4 sum = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
