// EXL3 tiles to byte sums or weights with AVX-512. Include trellis.h, which documents the functions.
//
// A vector's 32-bit lanes are the 16 columns of a strip, in the order 0, 8, 1, 9, ...: column pairs are 64-bit
// lanes.
#pragma once

#include <cstring>

#include "kernels/contract/vec.h"
#include "kernels/linear/trellis_tables.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

// The lanes of a decoded vector to columns 0, 1, 2, ...
LOCKSTEP_INLINE __m512i ColumnIndices() {
  return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
}
LOCKSTEP_INLINE contract::I32x16 ColumnOrder(contract::I32x16 a) {
  return contract::I32x16(_mm512_permutexvar_epi32(ColumnIndices(), a.v));
}
LOCKSTEP_INLINE contract::F32x16 ColumnOrder(contract::F32x16 a) {
  return contract::F32x16(_mm512_permutexvar_ps(ColumnIndices(), a.v));
}

// The 64 stream bits of window g of run q of every column pair.
template <int kBitsX2>
LOCKSTEP_INLINE __m512i GatherWindow(const std::uint8_t* tile, int q, int g) {
  using Tables = WideTables<kBitsX2>;
  const auto& window = Tables::kTables.window[q][g];
  const __m512i permutation = _mm512_load_si512(window.permutation);
  __m512i bytes;
  if (window.offset < 0) {  // the tile is a ring: its last word comes before its first
    std::int32_t last;
    std::memcpy(&last, tile + 16 * kBitsX2 - 4, 4);
    bytes = _mm512_mask_loadu_epi32(_mm512_set1_epi32(last), 0xfffe, tile - 4);
  } else {
    bytes = _mm512_loadu_si512(tile + window.offset);
  }
  __m512i gathered = _mm512_permutexvar_epi8(permutation, bytes);
#pragma GCC unroll 4
  for (int load = 1; load < Tables::kLoads; ++load) {
    const __mmask64 lanes = ~__mmask64{0} << (8 * Tables::kPairsPerLoad * load);
    bytes = _mm512_loadu_si512(tile + window.offset + load * Tables::kLoadStride);
    gathered = _mm512_mask_permutexvar_epi8(gathered, lanes, permutation, bytes);
  }
  return gathered;
}

// visit(v, states) for the tile's eight vectors v = 2q + h of 32 states: a 32-bit lane has rows 2q+8h and
// 2q+8h+1 of its column.
template <int kBitsX2, class Visit>
LOCKSTEP_INLINE void ForEachPair(const std::uint8_t* tile, Visit visit) {
  using Tables = WideTables<kBitsX2>;
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    __m512i bits = GatherWindow<kBitsX2>(tile, q, 0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      if (h == 1 && Tables::kWindows == 2) bits = GatherWindow<kBitsX2>(tile, q, 1);
      const auto& window = Tables::kTables.window[q][Tables::kWindows == 2 ? h : 0];
      visit(2 * q + h, _mm512_multishift_epi64_epi8(_mm512_load_si512(window.pairs[h]), bits));
    }
  }
}

// The halves of the 32-bit products of 16-bit states and mul1's multiplier.
struct ProductHalves {
  __m512i low, high;
};
LOCKSTEP_INLINE ProductHalves Mul1Product(__m512i states) {
  const __m512i low = _mm512_set1_epi16(static_cast<short>(0xd12d)),
                high = _mm512_set1_epi16(static_cast<short>(0x83dc));
  return {_mm512_mullo_epi16(states, low),
          _mm512_add_epi16(_mm512_mulhi_epu16(states, low), _mm512_mullo_epi16(states, high))};
}

LOCKSTEP_INLINE __m512i ByteSums(ProductHalves product) {
  const __m512i ones = _mm512_set1_epi8(1);
  return _mm512_add_epi16(_mm512_maddubs_epi16(product.low, ones), _mm512_maddubs_epi16(product.high, ones));
}

template <int kBitsX2>
void DecodeByteSums(const std::uint8_t* tiles, std::int16_t* panel) {
  for (int tile = 0; tile < 8; ++tile) {
    ForEachPair<kBitsX2>(tiles + tile * 16 * kBitsX2, [&](int v, __m512i states) {
      _mm512_store_si512(panel + 32 * (8 * tile + v), ByteSums(Mul1Product(states)));
    });
  }
}

template <int kRows>
LOCKSTEP_INLINE void MultiplyRows(const std::int16_t* panel, const std::int16_t* codes, std::int32_t* sums) {
  __m512i sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_si512();
  for (int v = 0; v < 64; ++v) {
    const __m512i byte_sums = _mm512_load_si512(panel + 32 * v);
    for (int r = 0; r < kRows; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, codes + 128 * r + 2 * v, 4);
      sum[r] = _mm512_dpwssd_epi32(sum[r], byte_sums, _mm512_set1_epi32(pair));
    }
  }
  for (int r = 0; r < kRows; ++r) contract::StoreI32(ColumnOrder(contract::I32x16(sum[r])), sums + 16 * r);
}

inline void MultiplyByteSums(const std::int16_t* panel, const std::int16_t* codes, std::int64_t rows,
                             std::int32_t* sums) {
  for (; rows >= 8; rows -= 8, codes += 8 * 128, sums += 8 * 16) MultiplyRows<8>(panel, codes, sums);
  for (; rows >= 4; rows -= 4, codes += 4 * 128, sums += 4 * 16) MultiplyRows<4>(panel, codes, sums);
  for (; rows >= 2; rows -= 2, codes += 2 * 128, sums += 2 * 16) MultiplyRows<2>(panel, codes, sums);
  if (rows == 1) MultiplyRows<1>(panel, codes, sums);
}

// Few rows: no panel. int8 codes need not even the byte sums: vpdpbusd adds four bytes times the splat code.
template <int kBitsX2, int kRows>
void MultiplyTilesInt8(const std::uint8_t* tiles, const std::int32_t* splat, std::int32_t* sums) {
  __m512i low[kRows][2], high[kRows][2];
  for (int r = 0; r < kRows; ++r) low[r][0] = low[r][1] = high[r][0] = high[r][1] = _mm512_setzero_si512();
  for (int tile = 0; tile < 8; ++tile) {
    ForEachPair<kBitsX2>(tiles + tile * 16 * kBitsX2, [&](int v, __m512i states) {
      const ProductHalves product = Mul1Product(states);
      for (int r = 0; r < kRows; ++r) {
        const __m512i code = _mm512_set1_epi32(splat[64 * r + 8 * tile + v]);
        low[r][v & 1] = _mm512_dpbusd_epi32(low[r][v & 1], product.low, code);
        high[r][v & 1] = _mm512_dpbusd_epi32(high[r][v & 1], product.high, code);
      }
    });
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i sum =
        _mm512_add_epi32(_mm512_add_epi32(low[r][0], low[r][1]), _mm512_add_epi32(high[r][0], high[r][1]));
    contract::StoreI32(ColumnOrder(contract::I32x16(sum)), sums + 16 * r);
  }
}

template <int kBitsX2, int kRows>
void MultiplyTilesInt16(const std::uint8_t* tiles, const std::int16_t* codes, std::int32_t* sums) {
  __m512i sum[kRows][2];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_si512();
  for (int tile = 0; tile < 8; ++tile) {
    ForEachPair<kBitsX2>(tiles + tile * 16 * kBitsX2, [&](int v, __m512i states) {
      const __m512i byte_sums = ByteSums(Mul1Product(states));
      for (int r = 0; r < kRows; ++r) {
        std::int32_t pair;
        std::memcpy(&pair, codes + 128 * r + 16 * tile + 2 * v, 4);
        sum[r][v & 1] = _mm512_dpwssd_epi32(sum[r][v & 1], byte_sums, _mm512_set1_epi32(pair));
      }
    });
  }
  for (int r = 0; r < kRows; ++r) {
    contract::StoreI32(ColumnOrder(contract::I32x16(_mm512_add_epi32(sum[r][0], sum[r][1]))), sums + 16 * r);
  }
}

// fp16(a + b) of the two fp16 numbers in a product of 3inst or mcg, as fp32.
LOCKSTEP_INLINE __m512 SumOfHalves(__m512i product) {
  // Both have exponent fields 12..15, so their bits go into an fp32 by a shift and constants: 0x81ffe000 keeps
  // sign, exponent's low bits and mantissa, 0x3f6c0000 flips the format's 0x3b60 and adds the bias. The low
  // half gets there by a signed multiplication by 2^13.
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x81ffe000)), flip = _mm512_set1_epi32(0x3f6c0000);
  constexpr int kAndXor = 0x6a;  // (a & b) ^ c
  const __m512i low_bits = _mm512_madd_epi16(product, _mm512_set1_epi32(1 << 13));
  const __m512i high = _mm512_ternarylogic_epi32(_mm512_srai_epi32(product, 3), mask, flip, kAndXor);
  const __m512i low = _mm512_ternarylogic_epi32(low_bits, mask, flip, kAndXor);
  return _mm512_add_ps(_mm512_castsi512_ps(high), _mm512_castsi512_ps(low));
}

// To 11 significant bits, ties to even: the last of the 24 bits of 8193 a is worth the last of 11 bits of a, and
// taking 8192 a away is exact. Within 2^-13 below a power of two it would be wrong; no state of the three codebooks
// is there (the tests try them all), and none of their weights is subnormal in fp16.
LOCKSTEP_INLINE __m512 RoundTo11Bits(__m512 a) {
  const __m512 scaled = _mm512_mul_ps(a, _mm512_set1_ps(8193.0f));
  return _mm512_fnmadd_ps(a, _mm512_set1_ps(8192.0f), scaled);
}

template <Codebook kCodebook>
LOCKSTEP_INLINE __m512 WeightsOf(__m512i states) {
  if constexpr (kCodebook == Codebook::kMul1) {
    const __m512i product = _mm512_mullo_epi32(states, _mm512_set1_epi32(static_cast<int>(0x83dcd12d)));
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), product, _mm512_set1_epi8(1));
    const __m512i scaled =
        _mm512_sub_epi32(_mm512_mullo_epi32(sums, _mm512_set1_epi32(1774)), _mm512_set1_epi32(905216));
    return RoundTo11Bits(_mm512_mul_ps(_mm512_cvtepi32_ps(scaled), _mm512_set1_ps(0x1p-18f)));
  } else if constexpr (kCodebook == Codebook::kMcg) {
    return RoundTo11Bits(
        SumOfHalves(_mm512_mullo_epi32(states, _mm512_set1_epi32(static_cast<int>(0xcbac1fed)))));
  } else {
    const __m512i product = _mm512_mullo_epi32(states, _mm512_set1_epi32(89226354));
    return RoundTo11Bits(SumOfHalves(_mm512_add_epi32(product, _mm512_set1_epi32(64248484))));
  }
}

// visit(tile, j, weights) for rows 2q + (j&1) + 8(j>>1), j = 0..3, of `count` tiles.
template <int kBitsX2, Codebook kCodebook, class Visit>
LOCKSTEP_INLINE void ForEachRowOfRun(const std::uint8_t* tiles, std::int64_t count, int q, Visit visit) {
  using Tables = WideTables<kBitsX2>;
  constexpr __mmask64 kLowHalves = 0x3333333333333333;
  for (std::int64_t tile = 0; tile < count; ++tile) {
    const std::uint8_t* bytes = tiles + tile * 16 * kBitsX2;
    __m512i bits = GatherWindow<kBitsX2>(bytes, q, 0);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if (j == 2 && Tables::kWindows == 2) bits = GatherWindow<kBitsX2>(bytes, q, 1);
      const auto& window = Tables::kTables.window[q][Tables::kWindows == 2 ? j / 2 : 0];
      const __m512i singles = _mm512_load_si512(window.singles[j]);
      visit(tile, j, WeightsOf<kCodebook>(_mm512_maskz_multishift_epi64_epi8(kLowHalves, singles, bits)));
    }
  }
}

LOCKSTEP_INLINE constexpr int RowOfRun(int q, int j) { return 2 * q + (j & 1) + 8 * (j >> 1); }

template <int kBitsX2, Codebook kCodebook>
void DecodeWeights(const std::uint8_t* tiles, float* panel) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    ForEachRowOfRun<kBitsX2, kCodebook>(tiles, 8, q, [&](std::int64_t tile, int j, __m512 weights) {
      _mm512_store_ps(panel + 16 * (16 * tile + RowOfRun(q, j)), weights);
    });
  }
}

template <int kBitsX2, Codebook kCodebook>
void MultiplyWeights(const std::uint8_t* tiles, std::int64_t count, const float* x, float* lanes) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    __m512 lane[4];
    for (int j = 0; j < 4; ++j) lane[j] = _mm512_load_ps(lanes + 16 * RowOfRun(q, j));
    ForEachRowOfRun<kBitsX2, kCodebook>(tiles, count, q, [&](std::int64_t tile, int j, __m512 weights) {
      lane[j] = _mm512_fmadd_ps(_mm512_set1_ps(x[16 * tile + RowOfRun(q, j)]), weights, lane[j]);
    });
    for (int j = 0; j < 4; ++j) _mm512_store_ps(lanes + 16 * RowOfRun(q, j), lane[j]);
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
