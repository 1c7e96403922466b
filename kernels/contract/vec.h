// Sixteen fp32 or int32 lanes: the logical width of the contract's vector code, whatever the machine has. One
// zmm register, two ymm registers or an array, by LOCKSTEP_ISA_LEVEL; every operation gives the same bits in
// all three.
//
// Types: F32x16, I32x16 (arithmetic wraps), Mask16 (one truth value a lane). F32x16(a) and I32x16(i) broadcast.
//
// Pointers need only their element's alignment. A form ending in N touches the first n elements, 0 <= n <= 16,
// and no other byte; a load gives +0 in the lanes beyond.
//
// F32 operations round to nearest even and keep subnormals. A NaN stays a NaN, but its sign and payload are not
// part of the contract (exact_math.h makes them canonical). Min(a,b) is (a < b ? a : b), Max(a,b) is
// (a > b ? a : b): b if either is NaN or both are zero. Comparisons with a NaN are false.
//
// Memory
//   Load Store LoadN StoreN (float); LoadI32 StoreI32; LoadI8 LoadU8 LoadI16 LoadU16 (extended);
//   StoreI8 StoreI16 (the low bits);
//   LoadBF16 LoadF16 StoreBF16 StoreF16 (to nearest even) and their N forms.
// F32x16
//   Add Sub Mul Div Sqrt Min Max Negate Abs; Fma (a*b + c, rounded once);
//   Less LessEqual Equal IsNan Select; BitsOf FloatOf; RoundToBF16 RoundToF16;
//   RoundToInt (ties to even), TruncateToInt (both INT32_MIN for a NaN and beyond int32); Fold (strides 8, 4,
//   2, 1).
// I32x16
//   + - * & | ^; << and >> by one count (>> keeps the sign);
//   ShiftLeft ShiftRight ShiftRightLogical by a count for each lane, 0..31;
//   Min Max Equal Less Select; AddPairs16 MaxPairs16 (a lane is two int16; sums wrap);
//   ToFloat (to nearest even), TruncateUnsignedToFloat (a lane is a uint32; toward zero).
// Mask16
//   & | ~; BitsOf (bit i is lane i); FirstLanes(n).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/contract/float_ops.h"

#if LOCKSTEP_ISA_LEVEL == 2
#include "kernels/contract/vec_avx512.h"
#elif LOCKSTEP_ISA_LEVEL == 1
#include "kernels/contract/vec_avx2.h"
#else
#include "kernels/contract/vec_generic.h"
#endif

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

template <>
struct IntOfFloat<F32x16> {
  using Type = I32x16;
};

LOCKSTEP_INLINE I32x16& operator+=(I32x16& a, I32x16 b) { return a = a + b; }

LOCKSTEP_INLINE F32x16 Negate(F32x16 a) { return FloatOf(BitsOf(a) ^ I32x16(INT32_MIN)); }
LOCKSTEP_INLINE F32x16 Abs(F32x16 a) { return FloatOf(BitsOf(a) & I32x16(INT32_MAX)); }

LOCKSTEP_INLINE I32x16 BF16BitsOf(F32x16 a) {
  const I32x16 bits = BitsOf(a);
  const I32x16 rounded = bits + I32x16(0x7fff) + (ShiftRightLogical(bits, I32x16(16)) & I32x16(1));
  const I32x16 quiet = bits | I32x16(0x400000);
  return ShiftRightLogical(Select(IsNan(a), quiet, rounded), I32x16(16));
}

LOCKSTEP_INLINE F32x16 RoundToBF16(F32x16 a) { return FloatOf(BF16BitsOf(a) << 16); }

LOCKSTEP_INLINE F32x16 LoadBF16(const std::uint16_t* p) { return FloatOf(LoadU16(p) << 16); }
LOCKSTEP_INLINE void StoreBF16(F32x16 a, std::uint16_t* p) {
  StoreI16(BF16BitsOf(a), reinterpret_cast<std::int16_t*>(p));
}

// 16-bit tails go through a copy: they are rare, and the copy touches exactly n elements.
LOCKSTEP_INLINE F32x16 LoadBF16N(const std::uint16_t* p, int n) {
  if (n == 16) return LoadBF16(p);
  std::uint16_t copy[16] = {};
  std::memcpy(copy, p, static_cast<std::size_t>(n) * sizeof(copy[0]));
  return LoadBF16(copy);
}
LOCKSTEP_INLINE F32x16 LoadF16N(const std::uint16_t* p, int n) {
  if (n == 16) return LoadF16(p);
  std::uint16_t copy[16] = {};
  std::memcpy(copy, p, static_cast<std::size_t>(n) * sizeof(copy[0]));
  return LoadF16(copy);
}
LOCKSTEP_INLINE void StoreBF16N(F32x16 a, std::uint16_t* p, int n) {
  if (n == 16) return StoreBF16(a, p);
  std::uint16_t copy[16];
  StoreBF16(a, copy);
  std::memcpy(p, copy, static_cast<std::size_t>(n) * sizeof(copy[0]));
}
LOCKSTEP_INLINE void StoreF16N(F32x16 a, std::uint16_t* p, int n) {
  if (n == 16) return StoreF16(a, p);
  std::uint16_t copy[16];
  StoreF16(a, copy);
  std::memcpy(p, copy, static_cast<std::size_t>(n) * sizeof(copy[0]));
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
