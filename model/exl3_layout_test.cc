// The EXL3 bit layout against published state vectors and against a bit-by-bit reading of the stream.
#include "model/exl3_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr std::array<int, 11> kRates = {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};  // twice the bits a weight

std::vector<std::uint32_t> VectorTile(int bits_x2) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(4 * bits_x2));
  for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = 0x01234567u * (i + 1) + 0x9e3779b9u;
  return words;
}

TEST(Exl3Layout, StatesOfThePublishedVectors) {
  using State = std::optional<std::uint32_t>;
  constexpr State kNone = std::nullopt;
  constexpr std::array<int, 9> kPositions = {0, 1, 2, 3, 4, 7, 8, 100, 255};
  struct Row {
    int bits_x2;
    std::array<State, 9> states;
  };
  const std::vector<Row> rows = {
      {2, {0x49e3, 0x93c6, 0x278c, 0x4f19, 0x9e33, 0xf19f, 0xe33e, 0x3dd4, 0xa4f1}},
      {4, {0x40a6, 0x0299, 0x0a67, 0x299f, 0xa67d, 0x9f5a, 0x7d6a, 0x8e98, 0xd029}},
      {6, {0xdb0c, 0xd867, 0xc33e, 0x19f5, 0xcfad, 0x5abf, 0xd5f9, 0x54cc, 0xfb61}},
      {8, {0x6999, 0x999f, 0x99f5, 0x9f5a, 0xf5ab, 0xbf20, 0xf20a, 0xd01f, 0x2699}},
      {10, {0x3a33, 0x467d, 0xcfad, 0xf5ab, 0xb57e, kNone, kNone, kNone, 0x51d1}},
      {16, {0x799f, 0x9f5a, 0x5abf, 0xbf20, 0x20a0, 0x0487, 0x87a1, 0xc8bb, 0xd379}},
      {5, {0x9716, 0xb8b3, 0xe2cf, 0x167d, kNone, kNone, 0xd6af, kNone, 0xe5c5}},
  };
  for (const Row& row : rows) {
    const std::vector<std::uint32_t> words = VectorTile(row.bits_x2);
    for (std::size_t i = 0; i < kPositions.size(); ++i) {
      if (!row.states[i]) continue;
      EXPECT_EQ(Exl3State(words.data(), kPositions[i], row.bits_x2), *row.states[i])
          << "K " << row.bits_x2 / 2.0 << " position " << kPositions[i];
    }
  }
}

// The format's own words: bit s of the stream is bit 31 - s % 32 of word s / 32, the stream is a ring, a
// position's state is the 16 bits that end with its own, and odd positions of a half-integer rate own one bit
// more.
TEST(Exl3Layout, StatesAreTheRingBitsThatEndAtEachPosition) {
  for (const int bits_x2 : kRates) {
    const std::vector<std::uint32_t> words = VectorTile(bits_x2);
    const int ring = 128 * bits_x2;
    int end = 0;
    for (int p = 0; p < 256; ++p) {
      end += bits_x2 / 2 + (bits_x2 % 2 != 0 && p % 2 != 0 ? 1 : 0);
      std::uint32_t state = 0;
      for (int i = end - 16; i < end; ++i) {
        const int s = (i + ring) % ring;
        state = state << 1 | (words[static_cast<std::size_t>(s / 32)] >> (31 - s % 32) & 1u);
      }
      ASSERT_EQ(Exl3EndBit(p, bits_x2), end);
      ASSERT_EQ(Exl3State(words.data(), p, bits_x2), state) << "rate " << bits_x2 / 2.0 << " position " << p;
    }
    EXPECT_EQ(end, ring);
  }
}

TEST(Exl3Layout, PositionsOfThePublishedVectors) {
  const std::vector<std::array<int, 3>> cases = {{0, 0, 0}, {1, 1, 0}, {2, 8, 0},    {3, 9, 0},    {4, 0, 8},
                                                 {7, 9, 8}, {8, 2, 0}, {100, 0, 11}, {255, 15, 15}};
  for (const auto& [p, row, column] : cases) {
    EXPECT_EQ(Exl3TileRow(p), row) << p;
    EXPECT_EQ(Exl3TileColumn(p), column) << p;
  }
}

TEST(Exl3Layout, PositionsAndTheirPublishedInverseCoverTheTile) {
  std::set<std::pair<int, int>> seen;
  for (int p = 0; p < 256; ++p) {
    const int r = Exl3TileRow(p), c = Exl3TileColumn(p);
    seen.emplace(r, c);
    const int t = 4 * (c & 7) + ((r & 7) >> 1);
    const int j = (r & 1) | ((r >> 3) << 1) | ((c >> 3) << 2);
    EXPECT_EQ(8 * t + j, p);
  }
  EXPECT_EQ(seen.size(), 256u);
}

template <typename T>
TensorView ViewOf(DType dtype, const std::vector<T>& values) {
  TensorView view;
  view.dtype = dtype;
  view.shape = {static_cast<std::int64_t>(values.size())};
  view.data = std::as_bytes(std::span(values));
  return view;
}

TEST(Exl3Layout, ScalesAreF16OrLegacySignBits) {
  const std::vector<std::uint16_t> suh = {0x3c00, 0xc000, 0x3555};  // 1, -2, 0.333251953125
  const std::vector<std::uint16_t> sv = {0x0005, 0x8000};           // bit set = -1, bit 0 first
  Exl3Matrix matrix;
  matrix.suh = ViewOf(DType::kF16, suh);
  matrix.svh = ViewOf(DType::kI16, sv);
  EXPECT_EQ(matrix.InputScale(0), 1.0f);
  EXPECT_EQ(matrix.InputScale(1), -2.0f);
  EXPECT_EQ(matrix.InputScale(2), 0.333251953125f);
  for (int j = 0; j < 32; ++j)
    EXPECT_EQ(matrix.OutputScale(j), j == 0 || j == 2 || j == 31 ? -1.0f : 1.0f) << j;
}

TEST(Exl3Layout, BitsAndWordsOfATile) {
  Exl3Matrix matrix;
  matrix.bits_x2 = 7;
  EXPECT_EQ(matrix.bits(), 3.5);
  EXPECT_EQ(matrix.words_per_tile(), 28);
  EXPECT_EQ(NameOf(Codebook::k3inst), "3inst");
  EXPECT_EQ(NameOf(Codebook::kMcg), "mcg");
  EXPECT_EQ(NameOf(Codebook::kMul1), "mul1");
}

}  // namespace
}  // namespace lockstep
