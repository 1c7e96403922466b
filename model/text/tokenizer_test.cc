// Oracle: the `tokenizers` library, through golden/tokenizer-small/cases.json. Real vocabularies:
// real_tokenizer_test.cc.
#include "model/text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "model/text/stream_decoder.h"
#include "model/text/test_data.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(Tokenizer, EncodesLikeTheLibrary) {
  for (const auto& item : SmallTokenizerCases()["encode"]) {
    const std::string text = item["text"];
    EXPECT_EQ(SmallTokenizer().Encode(text, true), item["ids"].get<Ids>()) << item["text"];
    EXPECT_EQ(SmallTokenizer().EncodeOrdinary(text), item["ids_without_added_tokens"].get<Ids>())
        << item["text"];
  }
}

TEST(Tokenizer, DecodesLikeTheLibrary) {
  for (const auto& item : SmallTokenizerCases()["decode"]) {
    const Ids ids = item["ids"];
    EXPECT_EQ(SmallTokenizer().Decode(ids, false), item["text"].get<std::string>());
    EXPECT_EQ(SmallTokenizer().Decode(ids, true), item["text_without_special"].get<std::string>());
  }
}

TEST(Tokenizer, StreamedTextEqualsDecodedText) {
  for (const auto& item : SmallTokenizerCases()["decode"]) {
    for (const bool skip_special : {false, true}) {
      const Ids ids = item["ids"];
      StreamDecoder decoder(SmallTokenizer(), skip_special);
      std::string text;
      for (const std::int32_t id : ids) text += decoder.Push(id);
      text += decoder.Flush();
      EXPECT_EQ(text, SmallTokenizer().Decode(ids, skip_special));
    }
  }
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) bytes += static_cast<char>(random() % (round % 2 == 0 ? 256 : 128));
    EXPECT_EQ(SmallTokenizer().DecodeBytes(SmallTokenizer().EncodeOrdinary(bytes), false), bytes);
  }
}

TEST(Tokenizer, ControlTextInContentStaysText) {
  const std::int32_t user = *SmallTokenizer().SpecialId("<｜User｜>");
  const std::vector<TextSegment> segments = {{"<｜User｜>", true}, {"say <｜User｜> twice", false}};
  const Ids ids = SmallTokenizer().Encode(segments);
  EXPECT_EQ(ids.front(), user);
  EXPECT_EQ(std::ranges::count(ids, user), 1);
  EXPECT_EQ(SmallTokenizer().Decode(ids, false), "<｜User｜>say <｜User｜> twice");
}

TEST(Tokenizer, OrdinaryTextOfSegmentsIsJoined) {
  const std::string text = "{\"price\": 181.2}</tool_result> and\n\nmore";
  const Ids whole = SmallTokenizer().EncodeOrdinary(text);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    for (const bool second_is_template : {false, true}) {
      const std::vector<TextSegment> segments = {{std::string_view(text).substr(0, cut), false},
                                                 {std::string_view(text).substr(cut), second_is_template}};
      EXPECT_EQ(SmallTokenizer().Encode(segments), whole) << cut;
    }
  }
}

TEST(Tokenizer, AControlTokenIsNotMadeOfTwoSegments) {
  const std::vector<TextSegment> segments = {{"<think", true}, {">", false}};
  EXPECT_EQ(SmallTokenizer().Encode(segments), SmallTokenizer().EncodeOrdinary("<think>"));
}

TEST(Tokenizer, TellsKindsOfTokensApart) {
  const Tokenizer& tokenizer = SmallTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_EQ(tokenizer.SpecialId("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(tokenizer.SpecialId("the"), std::nullopt);
  EXPECT_EQ(tokenizer.SpecialId(""), std::nullopt);
  EXPECT_TRUE(tokenizer.IsSpecial(0) && tokenizer.IsAdded(0));
  const std::int32_t think = *tokenizer.SpecialId("<think>");
  EXPECT_TRUE(tokenizer.IsAdded(think));
  EXPECT_FALSE(tokenizer.IsSpecial(think));  // "special" is false for most control tokens of V4.1
  EXPECT_EQ(tokenizer.TokenBytes(223), " ");
  EXPECT_EQ(tokenizer.VocabularyString(223), "Ġ");
  EXPECT_EQ(tokenizer.VocabularyString(think), "<think>");
  EXPECT_EQ(tokenizer.VocabularyString(0), "<｜begin▁of▁sentence｜>");
}

TEST(Tokenizer, IdsWithoutATokenAddNothing) {
  for (const std::int32_t id : {-1, 512, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(SmallTokenizer().HasToken(id));
    EXPECT_EQ(SmallTokenizer().TokenBytes(id), "");
    EXPECT_EQ(SmallTokenizer().VocabularyString(id), "");
    EXPECT_EQ(SmallTokenizer().Decode(Ids{223, id, 223}, false), "  ");
  }
}

}  // namespace
}  // namespace lockstep
