// EXL3 trellis to numbers: the three codebooks and whole matrices. Source: the format (spec in docs/numerics.md section 4).
#pragma once

#include <cstdint>
#include <vector>

#include "model/exl3_layout.h"

namespace lockstep::reference {

// 16-bit state to the bits of its fp16 weight.
std::uint16_t DecodeState(Codebook codebook, std::uint32_t state);

// mul1: state to the byte sum b, 0..1020; the weight is fp16((1774 b - 905216) / 2^18).
int Mul1ByteSum(std::uint32_t state);

// Calls visit(row, column, state) for every weight of the matrix, rows = inputs, columns = outputs.
template <typename Visit>
void ForEachState(const Exl3Matrix& matrix, Visit visit) {
  const std::int64_t row_tiles = matrix.in_padded / kExl3Tile, column_tiles = matrix.out_padded / kExl3Tile;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(matrix.words_per_tile()));
  for (std::int64_t kt = 0; kt < row_tiles; ++kt) {
    for (std::int64_t nt = 0; nt < column_tiles; ++nt) {
      const std::int64_t tile = kt * column_tiles + nt;
      for (std::size_t w = 0; w < words.size(); ++w) {
        words[w] = matrix.trellis.At<std::uint32_t>(tile * matrix.words_per_tile() + static_cast<std::int64_t>(w));
      }
      for (int p = 0; p < kExl3Tile * kExl3Tile; ++p) {
        visit(kt * kExl3Tile + Exl3TileRow(p), nt * kExl3Tile + Exl3TileColumn(p), Exl3State(words.data(), p, matrix.bits_x2));
      }
    }
  }
}

}  // namespace lockstep::reference
