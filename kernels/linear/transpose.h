// 16 x 16 values: vector i, lane j becomes vector j, lane i.
#pragma once

#include "kernels/contract/vec.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

#if LOCKSTEP_ISA_LEVEL == 2
LOCKSTEP_INLINE void Transpose16(contract::F32x16 (&a)[16]) {
  __m512 b[16];
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i].v, a[i + 1].v);
    b[i + 1] = _mm512_unpackhi_ps(a[i].v, a[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int k = 0; k < 2; ++k) {
      a[i + 2 * k].v = _mm512_shuffle_ps(b[i + k], b[i + k + 2], 0x44);
      a[i + 2 * k + 1].v = _mm512_shuffle_ps(b[i + k], b[i + k + 2], 0xee);
    }
  }
  // Now a[4g + c] has rows 4g..4g+3 of columns c, c+4, c+8, c+12.
  for (int c = 0; c < 4; ++c) {
    b[c] = _mm512_shuffle_f32x4(a[c].v, a[4 + c].v, 0x88);
    b[4 + c] = _mm512_shuffle_f32x4(a[8 + c].v, a[12 + c].v, 0x88);
    b[8 + c] = _mm512_shuffle_f32x4(a[c].v, a[4 + c].v, 0xdd);
    b[12 + c] = _mm512_shuffle_f32x4(a[8 + c].v, a[12 + c].v, 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    a[c].v = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);
    a[8 + c].v = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);
    a[4 + c].v = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
    a[12 + c].v = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
  }
}
#elif LOCKSTEP_ISA_LEVEL == 1
LOCKSTEP_INLINE void Transpose8(__m256 (&a)[8]) {
  __m256 b[8];
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int k = 0; k < 2; ++k) {
      a[i + 2 * k] = _mm256_shuffle_ps(b[i + k], b[i + k + 2], 0x44);
      a[i + 2 * k + 1] = _mm256_shuffle_ps(b[i + k], b[i + k + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) a[i] = b[i];
}

LOCKSTEP_INLINE void Transpose16(contract::F32x16 (&a)[16]) {
  __m256 quarter[2][2][8];  // [rows / 8][columns / 8]
  for (int i = 0; i < 16; ++i) {
    quarter[i / 8][0][i % 8] = a[i].lo;
    quarter[i / 8][1][i % 8] = a[i].hi;
  }
  for (auto& half : quarter) {
    Transpose8(half[0]);
    Transpose8(half[1]);
  }
  for (int i = 0; i < 16; ++i) a[i] = {quarter[0][i / 8][i % 8], quarter[1][i / 8][i % 8]};
}
#else
LOCKSTEP_INLINE void Transpose16(contract::F32x16 (&a)[16]) {
  float values[16][16], transposed[16][16];
  for (int i = 0; i < 16; ++i) contract::Store(a[i], values[i]);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) transposed[j][i] = values[i][j];
  }
  for (int i = 0; i < 16; ++i) a[i] = contract::Load(transposed[i]);
}
#endif

}  // namespace lockstep::kernels::LOCKSTEP_ISA
