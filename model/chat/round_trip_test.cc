// Metamorphic: what the encoder writes for an answer the parser reads back as that answer, in every split.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "model/chat/encoder.h"
#include "model/chat/test_output.h"
#include "model/chat/test_tokenizer.h"

namespace lockstep {
namespace {

class AnswerMaker {
 public:
  // `tokens`: the answer is split into ids, so its text may spell control tokens.
  AnswerMaker(unsigned seed, bool tokens) : random_(seed), tokens_(tokens) {}

  ChatMessage Answer() {
    ChatMessage answer{.role = ChatRole::kAssistant, .content = Text()};
    answer.reasoning = Text();
    for (int calls = Pick(4); calls > 0; --calls) answer.tool_calls.push_back(Call());
    return answer;
  }

  int Pick(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

 private:
  // Does not begin or end with newlines: those belong to the markup around it.
  std::string Text() {
    std::string text = Pick(5) == 0 ? "" : Raw();
    while (!text.empty() && text.front() == '\n') text.erase(0, 1);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  std::string Raw() {
    static const std::string kPieces[] = {"a",
                                          " ",
                                          "\n",
                                          "\n\n",
                                          "<",
                                          "</",
                                          ">",
                                          "\"",
                                          "\\",
                                          "</x>",
                                          "你好",
                                          "😀",
                                          "👩‍👧",
                                          "invoke name=\"x\">",
                                          "parameter>",
                                          "{\"a\": 1}",
                                          "\t",
                                          "\x01",
                                          "e\u0301",
                                          "calls>",
                                          "&lt;",
                                          "</th",
                                          "<｜",
                                          "DSML|",
                                          "｜",
                                          "DSML",
                                          "｜DSML｜",
                                          "</｜DSML｜ parameter>",
                                          "</think>",
                                          "<think>",
                                          "<｜end▁of▁sentence｜>"};
    static constexpr std::size_t kSpelling = 7;  // the last ones can spell a control token
    const std::size_t count = std::size(kPieces) - (tokens_ ? 0 : kSpelling);
    std::string text;
    for (int n = Pick(12); n > 0; --n) text += kPieces[Pick(static_cast<int>(count))];
    return text;
  }

  Json Value(int depth) {
    switch (Pick(depth > 2 ? 4 : 6)) {
      case 0:
        return Json::String(Raw());
      case 1:
        return {.kind = Json::Kind::kNumber, .text = std::to_string(Pick(1000)) + ".50"};
      case 2:
        return {.kind = Json::Kind::kBool, .boolean = Pick(2) == 0};
      case 3:
        return {};
      case 4: {
        Json list{.kind = Json::Kind::kArray};
        for (int n = Pick(3); n > 0; --n) list.items.push_back(Value(depth + 1));
        return list;
      }
      default:
        return Object(depth + 1);
    }
  }

  Json Object(int depth) {
    static const std::string kKeys[] = {"a", "b c", "日本", "", "q\"uote", "<k", "x string= y", "z\n"};
    Json object = Json::Object();
    const int first = Pick(std::size(kKeys));
    for (int n = Pick(4); n > 0; --n)
      object.members.push_back({kKeys[(first + n) % std::size(kKeys)], Value(depth)});
    return object;
  }

  ChatToolCall Call() {
    static const std::string kNames[] = {"f", "read-file", "ns::tool", "日本"};
    return {.id = "", .name = kNames[Pick(std::size(kNames))], .arguments = Object(0)};
  }

  std::mt19937 random_;
  bool tokens_;
};

std::string Expected(const ChatMessage& answer, bool thinking) {
  CompletedOutput output{.reasoning = thinking ? *answer.reasoning : "", .content = answer.content};
  for (const ChatToolCall& call : answer.tool_calls)
    output.tool_calls.push_back({"", call.name, SpacedJson(call.arguments)});
  output.finish_reason = answer.tool_calls.empty() ? FinishReason::kStop : FinishReason::kToolCalls;
  return Summary(output);
}

OutputParserOptions OptionsFor(bool thinking) {
  return {.start = thinking ? OutputStart::kReasoning : OutputStart::kContent};
}

TEST(RoundTripTest, EveryTokenSplitReturnsTheAnswer) {
  AnswerMaker make(7, true);
  for (int i = 0; i < 400; ++i) {
    const ChatMessage answer = make.Answer();
    const bool thinking = make.Pick(2) == 0;
    const ChatDialect dialect = kAllChatDialects[make.Pick(4)];
    const Prompt rendered = RenderAnswer(answer, dialect, thinking);
    const std::string expected = Expected(answer, thinking);
    const std::vector<std::int32_t> ids = EncodePrompt(rendered, SmallChatTokenizer()).ids;
    EXPECT_EQ(Summary(ParseIds(ids, OptionsFor(thinking)).output), expected) << rendered.text();
    // One id a byte: every split inside ordinary text at once.
    std::vector<std::int32_t> bytes;
    for (const std::int32_t id : ids) {
      if (SmallChatTokenizer().IsAdded(id)) {
        bytes.push_back(id);
      } else {
        for (const char byte : SmallChatTokenizer().TokenBytes(id))
          bytes.push_back(static_cast<unsigned char>(byte));
      }
    }
    EXPECT_EQ(Summary(ParseIds(bytes, OptionsFor(thinking)).output), expected) << rendered.text();
  }
}

TEST(RoundTripTest, EveryByteSplitReturnsTheAnswer) {
  AnswerMaker make(8, false);
  for (int i = 0; i < 60; ++i) {
    const ChatMessage answer = make.Answer();
    const Prompt rendered = RenderAnswer(answer, kAllChatDialects[make.Pick(4)], true);
    const std::string& text = rendered.text();
    const std::string expected = Expected(answer, true);
    for (std::size_t at = 0; at <= text.size(); ++at) {
      ASSERT_EQ(Summary(ParseText({text.substr(0, at), text.substr(at)}, OptionsFor(true)).output), expected)
          << text;
    }
    for (const std::size_t size : {1, 2, 3, 5, 7, 11, 23}) {
      std::vector<std::string> chunks;
      for (std::size_t at = 0; at < text.size(); at += size) chunks.push_back(text.substr(at, size));
      ASSERT_EQ(Summary(ParseText(chunks, OptionsFor(true)).output), expected) << text;
    }
    for (int n = 0; n < 20; ++n) {
      std::vector<std::string> chunks;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = static_cast<std::size_t>(make.Pick(9));
        chunks.push_back(text.substr(at, size));
        at += size;
      }
      ASSERT_EQ(Summary(ParseText(chunks, OptionsFor(true)).output), expected) << text;
    }
  }
}

TEST(RoundTripTest, ParsedAnswerRendersToTheSamePromptAgain) {
  AnswerMaker make(9, true);
  for (int i = 0; i < 200; ++i) {
    const ChatMessage answer = make.Answer();
    const Prompt rendered = RenderAnswer(answer, ChatDialect::kV41, true);
    const CompletedOutput output =
        ParseIds(EncodePrompt(rendered, SmallChatTokenizer()).ids, OptionsFor(true)).output;
    ChatMessage again{.role = ChatRole::kAssistant, .content = output.content};
    again.reasoning = output.reasoning;
    for (const CompletedCall& call : output.tool_calls) {
      again.tool_calls.push_back({.id = call.id, .name = call.name, .arguments = ReadJson(call.arguments)});
    }
    EXPECT_EQ(RenderAnswer(again, ChatDialect::kV41, true).text(), rendered.text());
  }
}

}  // namespace
}  // namespace lockstep
