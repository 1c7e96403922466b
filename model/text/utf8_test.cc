// Oracles: the replacement examples of the Unicode standard (16.0, tables 3-8 to 3-11) and the encoding form by
// definition.
#include "model/text/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "model/error.h"

namespace lockstep {
namespace {

std::string Bytes(std::initializer_list<int> values) { return std::string(values.begin(), values.end()); }

const std::string kFFFD = "\uFFFD";

// {ill-formed bytes, their replacement}
std::vector<std::pair<std::string, std::string>> StandardExamples() {
  const auto fffd = [](int n) {
    std::string text;
    while (n-- > 0) text.append(kFFFD);
    return text;
  };
  return {
      {Bytes({0xC0, 0xAF, 0xE0, 0x80, 0xBF, 0xF0, 0x81, 0x82, 0x41}), fffd(8) + "A"},
      {Bytes({0xED, 0xA0, 0x80, 0xED, 0xBF, 0xBF, 0xED, 0xAF, 0x41}), fffd(8) + "A"},
      {Bytes({0xF4, 0x91, 0x92, 0x93, 0xFF, 0x41, 0x80, 0xBF, 0x42}), fffd(5) + "A" + fffd(2) + "B"},
      {Bytes({0xE1, 0x80, 0xE2, 0xF0, 0x91, 0x92, 0xF1, 0xBF, 0x41}), fffd(4) + "A"},
      {Bytes({0x61, 0xF1, 0x80, 0x80, 0xE1, 0x80, 0xC2, 0x62, 0x80, 0x63, 0x80, 0xBF, 0x64}),
       std::string("a").append(fffd(3)).append("b").append(fffd(1)).append("c").append(fffd(2)).append("d")},
  };
}

std::string StreamInChunks(const std::string& bytes, std::size_t chunk) {
  Utf8Stream stream;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += chunk) text += stream.Push(bytes.substr(i, chunk));
  return text + stream.Flush();
}

TEST(Utf8, ReplacesMaximalSubpartsAsTheStandardShows) {
  for (const auto& [bytes, expected] : StandardExamples()) EXPECT_EQ(ReplaceInvalidUtf8(bytes), expected);
}

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string bytes;
    AppendUtf8(c, &bytes);
    const Utf8Char decoded = DecodeUtf8(bytes, 0);
    ASSERT_TRUE(decoded.valid && decoded.code_point == c && decoded.length == bytes.size())
        << std::hex << std::uint32_t{c};
  }
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8(""), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("naïve 你好 😀"), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("ab\xC3"), 2u);
  EXPECT_EQ(FindInvalidUtf8("你\xED\xA0\x80"), 3u);  // a surrogate
  EXPECT_EQ(FindInvalidUtf8("x\xC1\xBF"), 1u);       // overlong
}

TEST(Utf8, RefusalNamesTheSourceAndTheOffset) {
  EXPECT_NO_THROW(RequireUtf8("naïve", "in.txt"));
  try {
    RequireUtf8("ab\xC3(", "in.txt");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "in.txt: byte 2: expected well-formed UTF-8");
  }
}

TEST(Utf8Stream, EveryChunkingGivesTheSameText) {
  std::mt19937 random(3);
  const std::string alphabet =
      Bytes({0x41, 0x80, 0xBF, 0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xFF, 0x9F, 0xA0, 0x90});
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) bytes += alphabet[random() % alphabet.size()];
    const std::string whole = ReplaceInvalidUtf8(bytes);
    for (std::size_t chunk = 1; chunk <= bytes.size(); ++chunk) ASSERT_EQ(StreamInChunks(bytes, chunk), whole);
  }
}

TEST(Utf8Stream, HoldsOnlyWhatMayStillBecomeACharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("a\xF0\x9F"), "a");
  EXPECT_TRUE(stream.holding());
  EXPECT_EQ(stream.Push("\x98\x80"), "😀");
  EXPECT_FALSE(stream.holding());
  EXPECT_EQ(stream.Push("\xF0\x9F"), "");
  EXPECT_EQ(stream.Push("b"), kFFFD + "b");
  EXPECT_EQ(stream.Push("\xE4"), "");
  EXPECT_EQ(stream.Flush(), kFFFD);
  EXPECT_EQ(stream.Flush(), "");
}

}  // namespace
}  // namespace lockstep
