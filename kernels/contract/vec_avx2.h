// vec.h on two ymm registers. Include vec.h, which documents the operations.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/contract/isa.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

struct F32x16 {
  F32x16() = default;
  LOCKSTEP_INLINE explicit F32x16(float a) : lo(_mm256_set1_ps(a)), hi(lo) {}
  LOCKSTEP_INLINE F32x16(__m256 low, __m256 high) : lo(low), hi(high) {}
  __m256 lo, hi;
};

struct I32x16 {
  I32x16() = default;
  LOCKSTEP_INLINE explicit I32x16(std::int32_t a) : lo(_mm256_set1_epi32(a)), hi(lo) {}
  LOCKSTEP_INLINE I32x16(__m256i low, __m256i high) : lo(low), hi(high) {}
  __m256i lo, hi;
};

// All bits of a lane set or clear.
struct Mask16 {
  __m256 lo, hi;
};

LOCKSTEP_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
}
LOCKSTEP_INLINE Mask16 operator|(Mask16 a, Mask16 b) {
  return {_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)};
}
LOCKSTEP_INLINE Mask16 operator~(Mask16 a) {
  const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  return {_mm256_xor_ps(a.lo, ones), _mm256_xor_ps(a.hi, ones)};
}
LOCKSTEP_INLINE std::uint32_t BitsOf(Mask16 a) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(a.lo) | (_mm256_movemask_ps(a.hi) << 8));
}
LOCKSTEP_INLINE Mask16 FirstLanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane))};
}

LOCKSTEP_INLINE F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LOCKSTEP_INLINE F32x16 LoadN(const float* p, int n) {
  const Mask16 m = FirstLanes(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
LOCKSTEP_INLINE void Store(F32x16 a, float* p) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
LOCKSTEP_INLINE void StoreN(F32x16 a, float* p, int n) {
  const Mask16 m = FirstLanes(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

LOCKSTEP_INLINE I32x16 LoadI32(const std::int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
LOCKSTEP_INLINE void StoreI32(I32x16 a, std::int32_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
LOCKSTEP_INLINE I32x16 LoadI8(const std::int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
LOCKSTEP_INLINE I32x16 LoadU8(const std::uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
LOCKSTEP_INLINE I32x16 LoadI16(const std::int16_t* p) {
  return {_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
LOCKSTEP_INLINE I32x16 LoadU16(const std::uint16_t* p) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// Lanes 0..15 in the low 16 bits of each, in order.
LOCKSTEP_INLINE __m256i PackLow16(I32x16 a) {
  const __m256i mask = _mm256_set1_epi32(0xffff);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}
LOCKSTEP_INLINE void StoreI16(I32x16 a, std::int16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), PackLow16(a));
}
LOCKSTEP_INLINE void StoreI8(I32x16 a, std::int8_t* p) {
  const __m256i low = _mm256_and_si256(PackLow16(a), _mm256_set1_epi16(0xff));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

LOCKSTEP_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
LOCKSTEP_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
LOCKSTEP_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
LOCKSTEP_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
LOCKSTEP_INLINE F32x16 Sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
LOCKSTEP_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
LOCKSTEP_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
LOCKSTEP_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

LOCKSTEP_INLINE Mask16 Less(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
LOCKSTEP_INLINE Mask16 LessEqual(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
LOCKSTEP_INLINE Mask16 Equal(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
LOCKSTEP_INLINE Mask16 IsNan(F32x16 a) {
  return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
LOCKSTEP_INLINE F32x16 Select(Mask16 m, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

LOCKSTEP_INLINE I32x16 BitsOf(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
LOCKSTEP_INLINE F32x16 FloatOf(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
LOCKSTEP_INLINE I32x16 RoundToInt(F32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
LOCKSTEP_INLINE I32x16 TruncateToInt(F32x16 a) {
  return {_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)};
}
// The first cleared bit is the highest that 24 bits do not hold: after that, rounding to nearest rounds down.
LOCKSTEP_INLINE __m256 TruncateUnsignedToFloat(__m256i a) {
  const __m256i kept = _mm256_andnot_si256(_mm256_srli_epi32(a, 24), a);
  const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(kept, 16));
  const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(kept, _mm256_set1_epi32(0xffff)));
  return _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0f)), low);
}
LOCKSTEP_INLINE F32x16 TruncateUnsignedToFloat(I32x16 a) {
  return {TruncateUnsignedToFloat(a.lo), TruncateUnsignedToFloat(a.hi)};
}
LOCKSTEP_INLINE F32x16 ToFloat(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

LOCKSTEP_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 operator*(I32x16 a, I32x16 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 operator^(I32x16 a, I32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 operator<<(I32x16 a, int count) {
  return {_mm256_slli_epi32(a.lo, count), _mm256_slli_epi32(a.hi, count)};
}
LOCKSTEP_INLINE I32x16 operator>>(I32x16 a, int count) {
  return {_mm256_srai_epi32(a.lo, count), _mm256_srai_epi32(a.hi, count)};
}
LOCKSTEP_INLINE I32x16 ShiftLeft(I32x16 a, I32x16 n) {
  return {_mm256_sllv_epi32(a.lo, n.lo), _mm256_sllv_epi32(a.hi, n.hi)};
}
LOCKSTEP_INLINE I32x16 ShiftRight(I32x16 a, I32x16 n) {
  return {_mm256_srav_epi32(a.lo, n.lo), _mm256_srav_epi32(a.hi, n.hi)};
}
LOCKSTEP_INLINE I32x16 ShiftRightLogical(I32x16 a, I32x16 n) {
  return {_mm256_srlv_epi32(a.lo, n.lo), _mm256_srlv_epi32(a.hi, n.hi)};
}
LOCKSTEP_INLINE I32x16 Min(I32x16 a, I32x16 b) {
  return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 Max(I32x16 a, I32x16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 AddPairs16(I32x16 a, I32x16 b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
LOCKSTEP_INLINE I32x16 MaxPairs16(I32x16 a, I32x16 b) {
  return {_mm256_max_epi16(a.lo, b.lo), _mm256_max_epi16(a.hi, b.hi)};
}
LOCKSTEP_INLINE Mask16 Equal(I32x16 a, I32x16 b) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi))};
}
LOCKSTEP_INLINE Mask16 Less(I32x16 a, I32x16 b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.lo, a.lo)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.hi, a.hi))};
}
LOCKSTEP_INLINE I32x16 Select(Mask16 m, I32x16 yes, I32x16 no) {
  return BitsOf(Select(m, FloatOf(yes), FloatOf(no)));
}

LOCKSTEP_INLINE F32x16 LoadF16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
LOCKSTEP_INLINE void StoreF16(F32x16 a, std::uint16_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
LOCKSTEP_INLINE F32x16 RoundToF16(F32x16 a) {
  return {_mm256_cvtph_ps(_mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT)),
          _mm256_cvtph_ps(_mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT))};
}

LOCKSTEP_INLINE float Fold(F32x16 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
