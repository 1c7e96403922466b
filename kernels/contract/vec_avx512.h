// vec.h on one zmm register. Include vec.h, which documents the operations.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/contract/isa.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

struct F32x16 {
  F32x16() = default;
  LOCKSTEP_INLINE explicit F32x16(float a) : v(_mm512_set1_ps(a)) {}
  LOCKSTEP_INLINE explicit F32x16(__m512 a) : v(a) {}
  __m512 v;
};

struct I32x16 {
  I32x16() = default;
  LOCKSTEP_INLINE explicit I32x16(std::int32_t a) : v(_mm512_set1_epi32(a)) {}
  LOCKSTEP_INLINE explicit I32x16(__m512i a) : v(a) {}
  __m512i v;
};

struct Mask16 {
  __mmask16 v;
};

LOCKSTEP_INLINE Mask16 operator&(Mask16 a, Mask16 b) { return {static_cast<__mmask16>(a.v & b.v)}; }
LOCKSTEP_INLINE Mask16 operator|(Mask16 a, Mask16 b) { return {static_cast<__mmask16>(a.v | b.v)}; }
LOCKSTEP_INLINE Mask16 operator~(Mask16 a) { return {static_cast<__mmask16>(~a.v)}; }
LOCKSTEP_INLINE std::uint32_t BitsOf(Mask16 a) { return a.v; }
LOCKSTEP_INLINE Mask16 FirstLanes(int n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }

LOCKSTEP_INLINE F32x16 Load(const float* p) { return F32x16(_mm512_loadu_ps(p)); }
LOCKSTEP_INLINE F32x16 LoadN(const float* p, int n) {
  return F32x16(_mm512_maskz_loadu_ps(FirstLanes(n).v, p));
}
LOCKSTEP_INLINE void Store(F32x16 a, float* p) { _mm512_storeu_ps(p, a.v); }
LOCKSTEP_INLINE void StoreN(F32x16 a, float* p, int n) { _mm512_mask_storeu_ps(p, FirstLanes(n).v, a.v); }

LOCKSTEP_INLINE I32x16 LoadI32(const std::int32_t* p) { return I32x16(_mm512_loadu_si512(p)); }
LOCKSTEP_INLINE void StoreI32(I32x16 a, std::int32_t* p) { _mm512_storeu_si512(p, a.v); }
LOCKSTEP_INLINE I32x16 LoadI8(const std::int8_t* p) {
  return I32x16(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LOCKSTEP_INLINE I32x16 LoadU8(const std::uint8_t* p) {
  return I32x16(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LOCKSTEP_INLINE I32x16 LoadI16(const std::int16_t* p) {
  return I32x16(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
LOCKSTEP_INLINE I32x16 LoadU16(const std::uint16_t* p) {
  return I32x16(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
LOCKSTEP_INLINE void StoreI8(I32x16 a, std::int8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
LOCKSTEP_INLINE void StoreI16(I32x16 a, std::int16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}

LOCKSTEP_INLINE F32x16 Add(F32x16 a, F32x16 b) { return F32x16(_mm512_add_ps(a.v, b.v)); }
LOCKSTEP_INLINE F32x16 Sub(F32x16 a, F32x16 b) { return F32x16(_mm512_sub_ps(a.v, b.v)); }
LOCKSTEP_INLINE F32x16 Mul(F32x16 a, F32x16 b) { return F32x16(_mm512_mul_ps(a.v, b.v)); }
LOCKSTEP_INLINE F32x16 Div(F32x16 a, F32x16 b) { return F32x16(_mm512_div_ps(a.v, b.v)); }
LOCKSTEP_INLINE F32x16 Sqrt(F32x16 a) { return F32x16(_mm512_sqrt_ps(a.v)); }
LOCKSTEP_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return F32x16(_mm512_fmadd_ps(a.v, b.v, c.v)); }
LOCKSTEP_INLINE F32x16 Min(F32x16 a, F32x16 b) { return F32x16(_mm512_min_ps(a.v, b.v)); }
LOCKSTEP_INLINE F32x16 Max(F32x16 a, F32x16 b) { return F32x16(_mm512_max_ps(a.v, b.v)); }

LOCKSTEP_INLINE Mask16 Less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
LOCKSTEP_INLINE Mask16 LessEqual(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
LOCKSTEP_INLINE Mask16 Equal(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
LOCKSTEP_INLINE Mask16 IsNan(F32x16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
LOCKSTEP_INLINE F32x16 Select(Mask16 m, F32x16 yes, F32x16 no) {
  return F32x16(_mm512_mask_blend_ps(m.v, no.v, yes.v));
}

LOCKSTEP_INLINE I32x16 BitsOf(F32x16 a) { return I32x16(_mm512_castps_si512(a.v)); }
LOCKSTEP_INLINE F32x16 FloatOf(I32x16 a) { return F32x16(_mm512_castsi512_ps(a.v)); }
LOCKSTEP_INLINE I32x16 RoundToInt(F32x16 a) { return I32x16(_mm512_cvtps_epi32(a.v)); }
LOCKSTEP_INLINE I32x16 TruncateToInt(F32x16 a) { return I32x16(_mm512_cvttps_epi32(a.v)); }
LOCKSTEP_INLINE F32x16 TruncateUnsignedToFloat(I32x16 a) {
  return F32x16(_mm512_cvt_roundepu32_ps(a.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
}
LOCKSTEP_INLINE F32x16 ToFloat(I32x16 a) { return F32x16(_mm512_cvtepi32_ps(a.v)); }

LOCKSTEP_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return I32x16(_mm512_add_epi32(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return I32x16(_mm512_sub_epi32(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 operator*(I32x16 a, I32x16 b) { return I32x16(_mm512_mullo_epi32(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return I32x16(_mm512_and_si512(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return I32x16(_mm512_or_si512(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 operator^(I32x16 a, I32x16 b) { return I32x16(_mm512_xor_si512(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 operator<<(I32x16 a, int count) {
  return I32x16(_mm512_slli_epi32(a.v, static_cast<unsigned>(count)));
}
LOCKSTEP_INLINE I32x16 operator>>(I32x16 a, int count) {
  return I32x16(_mm512_srai_epi32(a.v, static_cast<unsigned>(count)));
}
LOCKSTEP_INLINE I32x16 ShiftLeft(I32x16 a, I32x16 n) { return I32x16(_mm512_sllv_epi32(a.v, n.v)); }
LOCKSTEP_INLINE I32x16 ShiftRight(I32x16 a, I32x16 n) { return I32x16(_mm512_srav_epi32(a.v, n.v)); }
LOCKSTEP_INLINE I32x16 ShiftRightLogical(I32x16 a, I32x16 n) { return I32x16(_mm512_srlv_epi32(a.v, n.v)); }
LOCKSTEP_INLINE I32x16 Min(I32x16 a, I32x16 b) { return I32x16(_mm512_min_epi32(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 Max(I32x16 a, I32x16 b) { return I32x16(_mm512_max_epi32(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 AddPairs16(I32x16 a, I32x16 b) { return I32x16(_mm512_add_epi16(a.v, b.v)); }
LOCKSTEP_INLINE I32x16 MaxPairs16(I32x16 a, I32x16 b) { return I32x16(_mm512_max_epi16(a.v, b.v)); }
LOCKSTEP_INLINE Mask16 Equal(I32x16 a, I32x16 b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
LOCKSTEP_INLINE Mask16 Less(I32x16 a, I32x16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
LOCKSTEP_INLINE I32x16 Select(Mask16 m, I32x16 yes, I32x16 no) {
  return I32x16(_mm512_mask_blend_epi32(m.v, no.v, yes.v));
}

LOCKSTEP_INLINE F32x16 LoadF16(const std::uint16_t* p) {
  return F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
LOCKSTEP_INLINE void StoreF16(F32x16 a, std::uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
LOCKSTEP_INLINE F32x16 RoundToF16(F32x16 a) {
  return F32x16(_mm512_cvtph_ps(_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT)));
}

LOCKSTEP_INLINE float Fold(F32x16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
