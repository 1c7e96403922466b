// Oracles: the `tokenizers` library (golden/tokenizer-small/cases.json) and the split rules as published,
// applied by hand.
#include "model/text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "model/text/test_data.h"

namespace lockstep {
namespace {

using Pieces = std::vector<std::string>;

Pieces Split(std::string_view text) {
  Pieces pieces;
  PieceScanner scanner(text);
  for (std::string_view piece; scanner.Next(&piece);) pieces.emplace_back(piece);
  return pieces;
}

TEST(PieceScanner, EqualsTheTokenizersLibrary) {
  for (const auto& item : SmallTokenizerCases()["encode"]) {
    std::vector<std::size_t> lengths;
    for (const std::string& piece : Split(item["text"].get_ref<const std::string&>()))
      lengths.push_back(piece.size());
    EXPECT_EQ(lengths, item["piece_bytes"].get<std::vector<std::size_t>>()) << item["text"];
  }
}

TEST(PieceScanner, NumbersComeOffFirstThreeAtATime) {
  EXPECT_EQ(Split("x1y"), (Pieces{"x", "1", "y"}));
  EXPECT_EQ(Split("0000"), (Pieces{"000", "0"}));
  EXPECT_EQ(Split("٣٤٥٦"), (Pieces{"٣٤٥", "٦"}));
  EXPECT_EQ(Split("①②③④"), (Pieces{"①②③", "④"}));
}

TEST(PieceScanner, IdeographsEndAt9FA5) {
  EXPECT_EQ(Split("龥龦"), (Pieces{"龥", "龦"}));
  EXPECT_EQ(Split("中文a中"), (Pieces{"中文", "a", "中"}));
  EXPECT_EQ(Split("ひカー"), (Pieces{"ひカー"}));
  EXPECT_EQ(Split("中 文"), (Pieces{"中", " ", "文"}));
}

// The third pattern applies inside a match of the second one too.
TEST(PieceScanner, PunctuationSplitsIdeographs) {
  EXPECT_EQ(Split("カ・カ・・"), (Pieces{"カ", "・", "カ", "・・"}));
  EXPECT_EQ(Split("!・a"), (Pieces{"!", "・", "a"}));
  EXPECT_EQ(Split("か\u3099"), (Pieces{"か\u3099"}));
  EXPECT_EQ(Split("か\u0301"), (Pieces{"か", "\u0301"}));
  EXPECT_EQ(Split(" ・\n"), (Pieces{" ", "・", "\n"}));
}

TEST(PieceScanner, AsciiPunctuationTakesTheLettersAfterIt) {
  EXPECT_EQ(Split("don't"), (Pieces{"don", "'t"}));
  EXPECT_EQ(Split("'naïve"), (Pieces{"'na", "ïve"}));
  EXPECT_EQ(Split("!!!abc"), (Pieces{"!!!", "abc"}));
  EXPECT_EQ(Split("«abc"), (Pieces{"«", "abc"}));
}

TEST(PieceScanner, PunctuationTakesOneSpaceBeforeAndNewlinesAfter) {
  EXPECT_EQ(Split("a >\n\nb"), (Pieces{"a", " >\n\n", "b"}));
  EXPECT_EQ(Split("a\t>\n"), (Pieces{"a", "\t", ">\n"}));
}

TEST(PieceScanner, WhiteSpaceRuns) {
  EXPECT_EQ(Split("a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(Split("a  "), (Pieces{"a", "  "}));
  EXPECT_EQ(Split("a  1"), (Pieces{"a", "  ", "1"}));
  EXPECT_EQ(Split("  \n  x"), (Pieces{"  \n", " ", " x"}));
  EXPECT_EQ(Split(" \r\n \n\t"), (Pieces{" \r\n \n", "\t"}));
}

TEST(PieceScanner, GapsArePieces) {
  EXPECT_EQ(Split("\u200b\u200ba"), (Pieces{"\u200b", "\u200ba"}));
  EXPECT_EQ(Split("\u200b\u200b!"), (Pieces{"\u200b\u200b", "!"}));
}

TEST(PieceScanner, IllFormedBytesAreCharactersOfNoCategory) {
  EXPECT_EQ(Split("a\xFF\xFE!"), (Pieces{"a", "\xFF\xFE", "!"}));
  EXPECT_EQ(Split("\xFF\xFE"
                  "a"),
            (Pieces{"\xFF",
                    "\xFE"
                    "a"}));
}

}  // namespace
}  // namespace lockstep
