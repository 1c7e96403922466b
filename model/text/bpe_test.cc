// Oracle: byte-pair merging by its definition, with no table, queue or list.
#include "model/text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "model/text/test_data.h"
#include "model/text/utf8.h"

namespace lockstep {
namespace {

// Tokens "a" to "d", every byte, and all their merges that a random order gives: many pairs, long tokens, ties.
TokenizerSpec DenseSpec(std::mt19937* random) {
  TokenizerSpec spec;
  for (const char32_t c : ByteCharacters()) {
    std::string text;
    AppendUtf8(c, &text);
    spec.vocabulary.push_back({text, static_cast<std::int32_t>(spec.vocabulary.size())});
  }
  std::vector<std::string> texts = {"a", "b", "c", "d"};
  std::map<std::string, bool> known;
  while (spec.merges.size() < 120) {
    const std::string left = texts[(*random)() % texts.size()], right = texts[(*random)() % texts.size()];
    if (left.size() + right.size() > 24 || known[left + " " + right]) continue;
    known[left + " " + right] = true;
    spec.merges.push_back({left, right});
    if (known[left + right]) continue;
    known[left + right] = true;
    texts.push_back(left + right);
    spec.vocabulary.push_back({left + right, static_cast<std::int32_t>(spec.vocabulary.size())});
  }
  return spec;
}

std::vector<std::string> MergeByDefinition(const TokenizerSpec& spec, const std::string& piece) {
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.push_back(std::string(1, c));
  for (;;) {
    std::size_t best_rank = spec.merges.size(), best = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (spec.merges[rank].left == symbols[i] && spec.merges[rank].right == symbols[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == spec.merges.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, EqualsTheDefinitionAtEveryLength) {
  std::mt19937 random(11);
  for (int round = 0; round < 8; ++round) {
    const TokenizerSpec spec = DenseSpec(&random);
    const std::vector<std::byte> image = BuildTokenImage(spec, 0, 0, "dense");
    TokenTables tables;
    ASSERT_TRUE(TokenTables::Open(image, &tables));
    for (const std::size_t length : {1, 2, 3, 5, 8, 13, 40, 95, 96, 97, 98, 150, 300}) {
      std::string piece;
      for (std::size_t i = 0; i < length; ++i) piece += static_cast<char>('a' + random() % 4);
      std::vector<std::int32_t> ids, direct;
      EncodePiece(tables, piece, &ids);
      MergePiece(tables, piece, &direct);
      EXPECT_EQ(ids, direct);
      std::vector<std::string> symbols;
      for (const std::int32_t id : ids) symbols.emplace_back(tables.Bytes(id));
      EXPECT_EQ(symbols, MergeByDefinition(spec, piece)) << piece;
    }
  }
}

TEST(Bpe, AnEmptyPieceHasNoIds) {
  const std::vector<std::byte> image =
      BuildTokenImage(ParseTokenizerJson(ReadText(SmallTokenizerPath()), "small"), 0, 0, "small");
  TokenTables tables;
  ASSERT_TRUE(TokenTables::Open(image, &tables));
  std::vector<std::int32_t> ids;
  EncodePiece(tables, "", &ids);
  EXPECT_TRUE(ids.empty());
}

}  // namespace
}  // namespace lockstep
