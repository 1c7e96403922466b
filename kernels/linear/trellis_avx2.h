// EXL3 tiles to byte sums or weights with AVX2. Include trellis.h, which documents the functions.
//
// Byte sums: a vector holds run q of column pairs c and c+4, one in each half. Four accumulators c = 0..3 hold
// the strip; in each, a half is two lanes of column c (c+4), then two of column c+8 (c+12).
#pragma once

#include <cstring>

#include "kernels/contract/vec.h"
#include "kernels/linear/transpose.h"
#include "kernels/linear/trellis_tables.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

LOCKSTEP_INLINE contract::F32x16 ColumnOrder(contract::F32x16 a) { return a; }

// The 16 bytes in which run q of column pair c lies.
template <int kBitsX2>
LOCKSTEP_INLINE __m128i LoadRun(const std::uint8_t* tile, int c, int q) {
  using Tables = NarrowTables<kBitsX2>;
  const int offset = c * Tables::kPairBytes / 4 * 4 + Tables::kTables.run[c % Tables::kParities][q].offset;
  if (offset >= 0) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + offset));
  std::int32_t last;  // the tile is a ring: its last word comes before its first
  std::memcpy(&last, tile + 16 * kBitsX2 - 4, 4);
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile));
  return _mm_insert_epi32(_mm_slli_si128(first, 4), last, 0);
}

LOCKSTEP_INLINE __m256i LoadTable(const void* table) {
  return _mm256_load_si256(static_cast<const __m256i*>(table));
}

// Byte sums of run q of column pairs c (low half) and c+4.
template <int kBitsX2>
LOCKSTEP_INLINE __m256i ByteSums(const std::uint8_t* tile, int c, int q) {
  const auto& run = NarrowTables<kBitsX2>::kTables.run[c % NarrowTables<kBitsX2>::kParities][q];
  const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(LoadRun<kBitsX2>(tile, c, q)),
                                                LoadRun<kBitsX2>(tile, c + 4, q), 1);
  // A multiplication by 2^shift shifts each lane by its own count.
  const __m256i power = LoadTable(run.power);
  const __m256i states =
      _mm256_or_si256(_mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, LoadTable(run.high)), power),
                      _mm256_mulhi_epu16(_mm256_shuffle_epi8(bytes, LoadTable(run.low)), power));
  const __m256i low = _mm256_set1_epi16(static_cast<short>(0xd12d)),
                high = _mm256_set1_epi16(static_cast<short>(0x83dc));
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i product_low = _mm256_mullo_epi16(states, low);
  const __m256i product_high =
      _mm256_add_epi16(_mm256_mulhi_epu16(states, low), _mm256_mullo_epi16(states, high));
  return _mm256_add_epi16(_mm256_maddubs_epi16(product_low, ones), _mm256_maddubs_epi16(product_high, ones));
}

template <int kBitsX2>
void DecodeByteSums(const std::uint8_t* tiles, std::int16_t* panel) {
  for (int tile = 0; tile < 8; ++tile) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(panel + 16 * (32 * c + 4 * tile + q)),
                           ByteSums<kBitsX2>(tiles + tile * 16 * kBitsX2, c, q));
      }
    }
  }
}

// Run q's codes of a row's tile, for each column.
LOCKSTEP_INLINE __m256i LoadCodes(const std::int16_t* codes) {
  long long four;
  std::memcpy(&four, codes, 8);
  return _mm256_set1_epi64x(four);
}

// The four accumulators of a row to sums of columns 0..15.
LOCKSTEP_INLINE void StoreColumns(const __m256i (&sum)[4], std::int32_t* sums) {
  const __m256 first = _mm256_castsi256_ps(_mm256_hadd_epi32(sum[0], sum[1]));   // columns 0 8 1 9, 4 12 5 13
  const __m256 second = _mm256_castsi256_ps(_mm256_hadd_epi32(sum[2], sum[3]));  // columns 2 10 3 11, 6 14 7 15
  _mm256_storeu_ps(reinterpret_cast<float*>(sums), _mm256_shuffle_ps(first, second, 0x88));
  _mm256_storeu_ps(reinterpret_cast<float*>(sums + 8), _mm256_shuffle_ps(first, second, 0xdd));
}

template <int kRows>
LOCKSTEP_INLINE void MultiplyRows(const std::int16_t* panel, const std::int16_t* codes, std::int32_t* sums) {
  __m256i stored[kRows][4];
  for (int c = 0; c < 4; ++c) {
    __m256i sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = _mm256_setzero_si256();
    for (int v = 0; v < 32; ++v) {
      const __m256i byte_sums = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + 16 * (32 * c + v)));
      for (int r = 0; r < kRows; ++r) {
        sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(byte_sums, LoadCodes(codes + 128 * r + 4 * v)));
      }
    }
    for (int r = 0; r < kRows; ++r) stored[r][c] = sum[r];
  }
  for (int r = 0; r < kRows; ++r) StoreColumns(stored[r], sums + 16 * r);
}

inline void MultiplyByteSums(const std::int16_t* panel, const std::int16_t* codes, std::int64_t rows,
                             std::int32_t* sums) {
  for (; rows >= 8; rows -= 8, codes += 8 * 128, sums += 8 * 16) MultiplyRows<8>(panel, codes, sums);
  for (; rows >= 4; rows -= 4, codes += 4 * 128, sums += 4 * 16) MultiplyRows<4>(panel, codes, sums);
  for (; rows >= 2; rows -= 2, codes += 2 * 128, sums += 2 * 16) MultiplyRows<2>(panel, codes, sums);
  if (rows == 1) MultiplyRows<1>(panel, codes, sums);
}

template <int kBitsX2, int kRows>
void MultiplyTilesInt16(const std::uint8_t* tiles, const std::int16_t* codes, std::int32_t* sums) {
  __m256i sum[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 4; ++c) sum[r][c] = _mm256_setzero_si256();
  }
  for (int tile = 0; tile < 8; ++tile) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const __m256i byte_sums = ByteSums<kBitsX2>(tiles + tile * 16 * kBitsX2, c, q);
        for (int r = 0; r < kRows; ++r) {
          const __m256i row_codes = LoadCodes(codes + 128 * r + 16 * tile + 4 * q);
          sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_madd_epi16(byte_sums, row_codes));
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) StoreColumns(sum[r], sums + 16 * r);
}

// fp16(a + b) of the two fp16 numbers in a product of 3inst or mcg, as fp32.
LOCKSTEP_INLINE __m256 SumOfHalves(__m256i product) {
  // Both have exponent fields 12..15, so their bits go into an fp32 by a shift and constants: 0x81ffe000 keeps
  // sign, exponent's low bits and mantissa, 0x3f6c0000 flips the format's 0x3b60 and adds the bias. The low
  // half gets there by a signed multiplication by 2^13.
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0x81ffe000)), flip = _mm256_set1_epi32(0x3f6c0000);
  const __m256i low_bits = _mm256_madd_epi16(product, _mm256_set1_epi32(1 << 13));
  const __m256i high = _mm256_xor_si256(_mm256_and_si256(_mm256_srai_epi32(product, 3), mask), flip);
  const __m256i low = _mm256_xor_si256(_mm256_and_si256(low_bits, mask), flip);
  return _mm256_add_ps(_mm256_castsi256_ps(high), _mm256_castsi256_ps(low));
}

// To 11 significant bits, ties to even: the last of the 24 bits of 8193 a is worth the last of 11 bits of a, and
// taking 8192 a away is exact. Within 2^-13 below a power of two it would be wrong; no state of the three codebooks
// is there (the tests try them all), and none of their weights is subnormal in fp16.
LOCKSTEP_INLINE __m256 RoundTo11Bits(__m256 a) {
  const __m256 scaled = _mm256_mul_ps(a, _mm256_set1_ps(8193.0f));
  return _mm256_fnmadd_ps(a, _mm256_set1_ps(8192.0f), scaled);
}

template <Codebook kCodebook>
LOCKSTEP_INLINE __m256 WeightsOf(__m256i states) {
  if constexpr (kCodebook == Codebook::kMul1) {
    const __m256i product = _mm256_mullo_epi32(states, _mm256_set1_epi32(static_cast<int>(0x83dcd12d)));
    const __m256i pairs = _mm256_maddubs_epi16(product, _mm256_set1_epi8(1));
    const __m256i scaled =
        _mm256_sub_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1774)), _mm256_set1_epi32(905216));
    return RoundTo11Bits(_mm256_mul_ps(_mm256_cvtepi32_ps(scaled), _mm256_set1_ps(0x1p-18f)));
  } else if constexpr (kCodebook == Codebook::kMcg) {
    return RoundTo11Bits(
        SumOfHalves(_mm256_mullo_epi32(states, _mm256_set1_epi32(static_cast<int>(0xcbac1fed)))));
  } else {
    const __m256i product = _mm256_mullo_epi32(states, _mm256_set1_epi32(89226354));
    return RoundTo11Bits(SumOfHalves(_mm256_add_epi32(product, _mm256_set1_epi32(64248484))));
  }
}

template <int kBitsX2, Codebook kCodebook>
void DecodeWeights(const std::uint8_t* tiles, float* panel) {
  using Tables = NarrowTables<kBitsX2>;
  for (int tile = 0; tile < 8; ++tile) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      __m256 weights[8];
#pragma GCC unroll 8
      for (int c = 0; c < 8; ++c) {
        const auto& run = Tables::kTables.run[c % Tables::kParities][q];
        const __m256i bytes = _mm256_broadcastsi128_si256(LoadRun<kBitsX2>(tiles + tile * 16 * kBitsX2, c, q));
        const __m256i shifted =
            _mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, LoadTable(run.triple)), LoadTable(run.shift));
        weights[c] = WeightsOf<kCodebook>(_mm256_and_si256(shifted, _mm256_set1_epi32(0xffff)));
      }
      Transpose8(weights);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const int row = 16 * tile + 2 * q + (j & 1) + 8 * ((j >> 1) & 1);
        _mm256_store_ps(panel + 16 * row + 8 * (j >> 2), weights[j]);
      }
    }
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
