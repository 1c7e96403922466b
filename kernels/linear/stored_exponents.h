// Exponents of values that came from a 16-bit format, as kernels/contract/mma_emulate.h wants them.
#pragma once

#include "kernels/contract/mma_emulate.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

// The format's smallest normal exponent; its subnormals have it too.
constexpr int kSmallestF16Exponent = -14;
constexpr int kSmallestBF16Exponent = -126;

LOCKSTEP_INLINE contract::I32x16 StoredExponents(contract::F32x16 values, int smallest) {
  using namespace contract;
  const I32x16 bits = BitsOf(values);
  const I32x16 exponent = Max((bits >> 23) & I32x16(0xff), I32x16(127 + smallest)) - I32x16(127);
  return Select(Equal(bits & I32x16(INT32_MAX), I32x16(0)), I32x16(kNoMmaExponent), exponent);
}

// PairExponents of both. The upper halves of the values hold all that matters.
LOCKSTEP_INLINE contract::I32x16 StoredExponentPairs(contract::F32x16 even, contract::F32x16 odd, int smallest) {
  using namespace contract;
#if LOCKSTEP_ISA_LEVEL == 2
  const __m512i pairs = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(BitsOf(even).v, 16), BitsOf(odd).v);
  const __m512i field = _mm512_and_si512(_mm512_srli_epi16(pairs, 7), _mm512_set1_epi16(0xff));
  const __m512i bounded = _mm512_max_epi16(field, _mm512_set1_epi16(static_cast<short>(127 + smallest)));
  const __m512i exponent = _mm512_sub_epi16(bounded, _mm512_set1_epi16(127));
  const __mmask32 zero = _mm512_testn_epi16_mask(pairs, _mm512_set1_epi16(0x7fff));
  return I32x16(_mm512_mask_mov_epi16(exponent, zero, _mm512_set1_epi16(kNoMmaExponent)));
#else
  return PairExponents(StoredExponents(even, smallest), StoredExponents(odd, smallest));
#endif
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
