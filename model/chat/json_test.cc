// Oracles: RFC 8259 for what is JSON; Python's json.dumps(ensure_ascii=False) for the written form.
#include "model/chat/json.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

std::string Rewritten(std::string_view text) { return SpacedJson(ReadJson(text)); }

std::string ErrorOf(std::string_view text, const JsonReadOptions& options = {}) {
  try {
    ReadJson(text, options);
  } catch (const RequestError& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonTest, KeepsOrderAndNumberLexemes) {
  EXPECT_EQ(Rewritten(R"({"z":1.0,"a":-0,"m":[1E5,1e-07,123456789012345678901234567890,0.10]})"),
            R"({"z": 1.0, "a": -0, "m": [1E5, 1e-07, 123456789012345678901234567890, 0.10]})");
}

TEST(JsonTest, WritesAsPythonDoes) {
  // json.dumps(json.loads(text), ensure_ascii=False)
  EXPECT_EQ(
      Rewritten(
          R"( {"k\u00e9":"\u4f60\/\"\\\b\f\n\r\t\u0001\u001f\u007f\ud83d\ude00","e":[],"o":{},"n":[null,true,false]} )"),
      "{\"ké\": \"你/\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f😀\", \"e\": [], \"o\": {}, \"n\": [null, true, "
      "false]}");
}

TEST(JsonTest, RepeatedNameKeepsItsPlaceAndTakesTheLastValue) {
  EXPECT_EQ(Rewritten(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
  std::string many = "{";
  for (int i = 0; i < 200; ++i) many += "\"k" + std::to_string(i % 100) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  const Json value = ReadJson(many);
  ASSERT_EQ(value.members.size(), 100u);
  EXPECT_EQ(value.members[7].key, "k7");
  EXPECT_EQ(value.members[7].value.text, "107");
}

TEST(JsonTest, RejectsWhatIsNoJson) {
  for (const char* text :
       {"",    " ",   "{",       "[1",        "[1,]",   "{\"a\":1,}", "{\"a\"}", "{a:1}",         "nul",
        "tru", "01",  "1.",      ".5",        "1e",     "+1",         "-",       "NaN",           "Infinity",
        "'a'", "\"a", "\"\\x\"", "\"\\u12\"", "\"\n\"", "1 2",        "[1]x",    "\xEF\xBB\xBF{}"}) {
    EXPECT_NE(ErrorOf(text), "no error") << text;
  }
  for (const char* text : {"0", "-0", "1e5", "1E+5", "1.5e-7", "\"\"", "null", "[[]]"})
    EXPECT_EQ(ErrorOf(text), "no error") << text;
}

TEST(JsonTest, LoneSurrogateNamesItsPlace) {
  EXPECT_EQ(ErrorOf(R"({"messages":[{"content":"ok"},{"content":"a\ud800b"}]})"),
            "messages[1].content: lone surrogate in a string, expected a pair (byte 43)");
  EXPECT_NE(ErrorOf(R"(["\udc00"])"), "no error");
  EXPECT_NE(ErrorOf(R"(["\ud800\ud800"])"), "no error");
  EXPECT_NE(ErrorOf(R"(["\ud800\n"])"), "no error");
  EXPECT_EQ(
      ReadJson(R"("a\ud800\ud83d\ude00\udc00")", {.root = "", .lone_surrogates = LoneSurrogates::kReplace})
          .text,
      "a\uFFFD😀\uFFFD");
}

TEST(JsonTest, InvalidUtf8NamesItsPlace) {
  EXPECT_EQ(ErrorOf("{\"messages\":[{\"content\":\"a\xFFz\"}]}"),
            "messages[0].content: invalid UTF-8 in a string (byte 26)");
  EXPECT_NE(ErrorOf("{\"\xC0\x80\":1}"), "no error");
  EXPECT_NE(ErrorOf("\"\xED\xA0\x80\""), "no error") << "a surrogate in UTF-8";
}

TEST(JsonTest, DepthIsLimited) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(ErrorOf(nested(kMaxJsonDepth)), "no error");
  EXPECT_NE(ErrorOf(nested(kMaxJsonDepth + 1)), "no error");
  const std::string deep = "{\"messages\":[{\"role\":\"user\",\"content\":" + std::string(1000000, '[');
  EXPECT_EQ(ErrorOf(deep),
            "messages[0].content[0][0][0][0][0]...: JSON nested deeper than 128 levels (byte 163)");
  std::string objects;
  for (int i = 0; i < 1000000; ++i) objects += "{\"a\":";
  EXPECT_NE(ErrorOf(objects), "no error");
}

TEST(JsonTest, RootStandsBeforeThePath) {
  EXPECT_EQ(ErrorOf("{\"a\":[1,x]}", {.root = "messages[3].tool_calls[0].function.arguments"}),
            "messages[3].tool_calls[0].function.arguments.a[1]: expected a JSON value (byte 8)");
  EXPECT_EQ(ErrorOf("x"), "request body: expected a JSON value (byte 0)");
}

TEST(JsonTest, FindTreatsNullAsAbsent) {
  const Json value = ReadJson(R"({"a":null,"b":1})");
  EXPECT_EQ(value.Find("a"), nullptr);
  EXPECT_EQ(value.Find("c"), nullptr);
  ASSERT_NE(value.Find("b"), nullptr);
  EXPECT_EQ(value.Find("b")->text, "1");
}

}  // namespace
}  // namespace lockstep
