// The 128-point butterfly of EXL3 on eight vectors: strides 1, 2, 4, ..., 64 in this order, (a,b) -> (a+b,
// a-b).
#pragma once

#include "kernels/contract/vec.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

using contract::Add;
using contract::F32x16;
using contract::Sub;

#if LOCKSTEP_ISA_LEVEL == 2
// `partner` holds each lane's element at distance `stride`; `upper` are the lanes that get the difference.
LOCKSTEP_INLINE F32x16 ButterflyStep(F32x16 x, __m512 partner, __mmask16 upper) {
  return F32x16(_mm512_mask_sub_ps(_mm512_add_ps(x.v, partner), upper, partner, x.v));
}
LOCKSTEP_INLINE F32x16 ButterflyInVector(F32x16 x) {
  x = ButterflyStep(x, _mm512_permute_ps(x.v, 0xb1), 0xaaaa);
  x = ButterflyStep(x, _mm512_permute_ps(x.v, 0x4e), 0xcccc);
  x = ButterflyStep(x, _mm512_shuffle_f32x4(x.v, x.v, 0xb1), 0xf0f0);
  return ButterflyStep(x, _mm512_shuffle_f32x4(x.v, x.v, 0x4e), 0xff00);
}
#elif LOCKSTEP_ISA_LEVEL == 1
template <int kUpper>
LOCKSTEP_INLINE __m256 ButterflyStep(__m256 x, __m256 partner) {
  return _mm256_blend_ps(_mm256_add_ps(x, partner), _mm256_sub_ps(partner, x), kUpper);
}
LOCKSTEP_INLINE __m256 ButterflyOf8(__m256 x) {
  x = ButterflyStep<0xaa>(x, _mm256_permute_ps(x, 0xb1));
  x = ButterflyStep<0xcc>(x, _mm256_permute_ps(x, 0x4e));
  return ButterflyStep<0xf0>(x, _mm256_permute2f128_ps(x, x, 0x01));
}
LOCKSTEP_INLINE F32x16 ButterflyInVector(F32x16 x) {
  const __m256 lo = ButterflyOf8(x.lo), hi = ButterflyOf8(x.hi);
  return {_mm256_add_ps(lo, hi), _mm256_sub_ps(lo, hi)};
}
#else
LOCKSTEP_INLINE F32x16 ButterflyInVector(F32x16 x) {
  float lane[16];
  contract::Store(x, lane);
  for (int stride = 1; stride < 16; stride *= 2) {
    for (int i = 0; i < 16; ++i) {
      if (i & stride) continue;
      const float a = lane[i], b = lane[i + stride];
      lane[i] = a + b;
      lane[i + stride] = a - b;
    }
  }
  return contract::Load(lane);
}
#endif

LOCKSTEP_INLINE void Butterfly128(F32x16 (&x)[8]) {
  for (int v = 0; v < 8; ++v) x[v] = ButterflyInVector(x[v]);
  for (int stride = 1; stride < 8; stride *= 2) {
    for (int v = 0; v < 8; ++v) {
      if (v & stride) continue;
      const F32x16 a = x[v], b = x[v + stride];
      x[v] = Add(a, b);
      x[v + stride] = Sub(a, b);
    }
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
