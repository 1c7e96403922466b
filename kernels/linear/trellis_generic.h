// EXL3 tiles to byte sums or weights in plain loops. Include trellis.h, which documents the functions.
#pragma once

#include <cstring>

#include "kernels/contract/vec.h"
#include "model/exl3_layout.h"
#include "model/float_formats.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

LOCKSTEP_INLINE contract::F32x16 ColumnOrder(contract::F32x16 a) { return a; }

// visit(row, column, state) for the 256 weights of a tile.
template <int kBitsX2, class Visit>
LOCKSTEP_INLINE void ForEachState(const std::uint8_t* tile, Visit visit) {
  std::uint32_t words[4 * kBitsX2];
  std::memcpy(words, tile, sizeof(words));
  for (int p = 0; p < 256; ++p) visit(Exl3TileRow(p), Exl3TileColumn(p), Exl3State(words, p, kBitsX2));
}

LOCKSTEP_INLINE int Mul1ByteSum(std::uint32_t state) {
  const std::uint32_t x = state * 0x83dcd12du;
  return static_cast<int>((x & 0xffu) + ((x >> 8) & 0xffu) + ((x >> 16) & 0xffu) + (x >> 24));
}

// The panel is [128 inputs in the order of the codes][16 columns].
template <int kBitsX2>
void DecodeByteSums(const std::uint8_t* tiles, std::int16_t* panel) {
  for (int tile = 0; tile < 8; ++tile) {
    ForEachState<kBitsX2>(tiles + tile * 16 * kBitsX2, [&](int row, int column, std::uint32_t state) {
      const int position = 16 * tile + 4 * ((row & 7) >> 1) + 2 * (row >> 3) + (row & 1);
      panel[16 * position + column] = static_cast<std::int16_t>(Mul1ByteSum(state));
    });
  }
}

// Sums may wrap on the way; what the caller makes of them does not.
inline void MultiplyByteSums(const std::int16_t* panel, const std::int16_t* codes, std::int64_t rows,
                             std::int32_t* sums) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::uint32_t sum[16] = {};
    for (int k = 0; k < 128; ++k) {
      for (int n = 0; n < 16; ++n) sum[n] += static_cast<std::uint32_t>(panel[16 * k + n] * codes[128 * r + k]);
    }
    std::memcpy(sums + 16 * r, sum, sizeof(sum));
  }
}

LOCKSTEP_INLINE float SumOfHalves(std::uint32_t product) {
  const std::uint32_t halves = (product & 0x8fff8fffu) ^ 0x3b603b60u;
  return RoundToF16(F16ToFloat(static_cast<std::uint16_t>(halves & 0xffffu)) +
                    F16ToFloat(static_cast<std::uint16_t>(halves >> 16)));
}

template <Codebook kCodebook>
LOCKSTEP_INLINE float WeightOf(std::uint32_t state) {
  if constexpr (kCodebook == Codebook::kMul1) {
    return RoundToF16(static_cast<float>(1774 * Mul1ByteSum(state) - 905216) * 0x1p-18f);
  } else if constexpr (kCodebook == Codebook::kMcg) {
    return SumOfHalves(state * 0xcbac1fedu);
  } else {
    return SumOfHalves(state * 89226354u + 64248484u);
  }
}

template <int kBitsX2, Codebook kCodebook>
void DecodeWeights(const std::uint8_t* tiles, float* panel) {
  for (int tile = 0; tile < 8; ++tile) {
    ForEachState<kBitsX2>(tiles + tile * 16 * kBitsX2, [&](int row, int column, std::uint32_t state) {
      panel[16 * (16 * tile + row) + column] = WeightOf<kCodebook>(state);
    });
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
