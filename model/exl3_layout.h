// The EXL3 weight format: which tensors make one quantized matrix and how its bits are laid out. No decoding to
// numbers. Weights are (in, out): y = x W. Source of the layout: the format's own files, see docs/numerics.md
// section on EXL3.
#pragma once

#include <cstdint>
#include <string>

#include "model/tensor_view.h"

namespace lockstep {

enum class Codebook { k3inst = 0, kMcg = 1, kMul1 = 2 };

std::string_view NameOf(Codebook codebook);

inline constexpr int kExl3Tile = 16;            // trellis tiles are 16 x 16
inline constexpr int kExl3HadamardBlock = 128;  // both sides are transformed in blocks of 128

// One quantized matrix. in_padded and out_padded are multiples of 128; rows past the model's own in_features
// are zero input, columns past out_features are dropped.
struct Exl3Matrix {
  Codebook codebook = Codebook::kMul1;
  int bits_x2 = 0;  // twice the bits per weight: even 2..16, and 3, 5, 7 for the half-integer rates
  std::int64_t in_padded = 0;
  std::int64_t out_padded = 0;
  TensorView trellis;  // I16 [in/16][out/16][8 * bits_x2], raw uint16
  TensorView suh;      // F16 [in] or, legacy, I16 [in/16] sign bits (bit set = -1)
  TensorView svh;      // F16 [out] or, legacy, I16 [out/16]
  TensorView bias;     // F16 [out or out_padded], optional

  double bits() const { return bits_x2 / 2.0; }
  // Input scale of row i, output scale of column j: sign and magnitude, fp16 values widened.
  float InputScale(std::int64_t i) const;
  float OutputScale(std::int64_t j) const;
  // 32-bit words of one tile.
  int words_per_tile() const { return 4 * bits_x2; }
};

// Row and column inside a tile of stream position p = 0..255.
inline constexpr int Exl3TileRow(int p) {
  const int t = p >> 3, j = p & 7;
  return 2 * (t & 3) + (j & 1) + 8 * ((j >> 1) & 1);
}
inline constexpr int Exl3TileColumn(int p) {
  const int t = p >> 3, j = p & 7;
  return (t >> 2) + 8 * (j >> 2);
}
// Last stream bit (exclusive) of position p, from the ring's start.
inline constexpr int Exl3EndBit(int p, int bits_x2) {
  if (bits_x2 % 2 == 0) return (p + 1) * (bits_x2 / 2);
  return (p >> 1) * bits_x2 + ((p & 1) ? bits_x2 : bits_x2 / 2);
}
// The 16-bit state of position p; `words` is the tile as little-endian uint32 [4 * bits_x2].
inline std::uint32_t Exl3State(const std::uint32_t* words, int p, int bits_x2) {
  const int ring_words = 4 * bits_x2;
  const int end = Exl3EndBit(p, bits_x2) + 128 * bits_x2;  // one ring further, so that end-16 is never negative
  const int hi = ((end - 16) >> 5) % ring_words;
  const int lo = ((end - 1) >> 5) % ring_words;
  const int shift = 32 * (((end - 1) >> 5) + 1) - end;
  const std::uint64_t window = (static_cast<std::uint64_t>(words[hi]) << 32) | words[lo];
  return static_cast<std::uint32_t>(window >> shift) & 0xffffu;
}

}  // namespace lockstep
