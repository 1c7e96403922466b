// Oracle: the grammar and rules of spec page encoding.md. Byte equality with the official encoder is in
// recorded_renderings_test.cc.
#include "model/chat/encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "model/chat/test_tokenizer.h"

namespace lockstep {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";

std::string Rendered(const std::string& body, ChatDialect dialect,
                     ReasoningHistory history = ReasoningHistory::kAuto) {
  return RenderChat(ParseChatRequest(body), dialect, {.reasoning_history = history}).text();
}

std::string Line(int number) {
  return "<｜System｜>Reasoning Effort: " + std::to_string(number) +
         " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
}

const std::string kHi = R"({"messages":[{"role":"user","content":"hi"}])";

TEST(ChatEncoderTest, EffortNumbers) {
  const auto expect = [](ChatDialect dialect, const std::string& effort, int number) {
    EXPECT_EQ(Rendered(kHi + ",\"reasoning_effort\":" + effort + "}", dialect),
              std::string(kBos) + Line(number) + "<｜User｜>hi<｜Assistant｜><think>")
        << effort;
  };
  expect(ChatDialect::kV41, "null", 75);
  expect(ChatDialect::kV41, "\"low\"", 50);
  expect(ChatDialect::kV41, "\"high\"", 75);
  expect(ChatDialect::kV41, "\"xhigh\"", 75);
  expect(ChatDialect::kV41, "\"max\"", 100);
  expect(ChatDialect::kV41, "1", 1);
  expect(ChatDialect::kV41Pre, "null", 50);
  expect(ChatDialect::kV41Pre, "\"low\"", 25);
  expect(ChatDialect::kV41Pre, "\"xhigh\"", 75);
  expect(ChatDialect::kV41Pre, "\"max\"", 100);
}

TEST(ChatEncoderTest, V4EffortTexts) {
  const auto head = [](ChatDialect dialect, const std::string& effort) {
    const std::string text = Rendered(kHi + ",\"reasoning_effort\":\"" + effort + "\"}", dialect);
    return text.substr(kBos.size(), 40);
  };
  EXPECT_EQ(head(ChatDialect::kV4Preview, "high").substr(0, 12), "<｜User｜>");
  EXPECT_EQ(head(ChatDialect::kV4Preview, "max"), "Reasoning Effort: Absolute maximum with ");
  EXPECT_EQ(head(ChatDialect::kV40731, "low").substr(0, 12), "<｜User｜>");
  EXPECT_EQ(head(ChatDialect::kV40731, "high"), "Reasoning Effort: Absolute maximum with ");
  EXPECT_EQ(head(ChatDialect::kV40731, "max").substr(0, 36), "Reasoning Effort: Beyond maximum \u2014");
  EXPECT_THROW(Rendered(kHi + ",\"reasoning_effort\":42}", ChatDialect::kV40731), RequestError);
}

TEST(ChatEncoderTest, LateSystemMessagesStayInPlace) {
  const std::string body =
      R"({"thinking":false,"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"b"},{"role":"system","content":"late"},{"role":"user","content":"c"}]})";
  EXPECT_EQ(Rendered(body, ChatDialect::kV41),
            std::string(kBos) + "<｜System｜>s<｜User｜>a<｜Assistant｜></think>b" + std::string(kEos) +
                "<｜System｜>late<｜User｜>c<｜Assistant｜></think>");
  EXPECT_EQ(Rendered(body, ChatDialect::kV40731), std::string(kBos) + "s<｜User｜>a<｜Assistant｜></think>b" +
                                                      std::string(kEos) +
                                                      "<｜User｜>late\n\nc<｜Assistant｜></think>");
}

const std::string kHistory =
    R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"r"},)"
    R"({"role":"user","content":"c"},{"role":"assistant","content":"d","reasoning_content":"s"},)"
    R"({"role":"assistant","content":"e"}],"reasoning_effort":"low")";

std::string V4Turns(const std::string& b, const std::string& d, const std::string& e) {
  const std::string header = "<｜Assistant｜>";
  const std::string eos(kEos);
  return std::string(kBos) + "<｜User｜>a" + header + b + "</think>b" + eos + "<｜User｜>c" + header + d +
         "</think>d" + eos + header + e + "</think>e" + eos + header + "<think>";
}

TEST(ChatEncoderTest, ReasoningHistoryWithoutTools) {
  const std::string body = kHistory + "}";
  const ChatDialect v4 = ChatDialect::kV40731;
  EXPECT_EQ(Rendered(body, v4), V4Turns("", "<think>s", "<think>"));
  EXPECT_EQ(Rendered(body, v4, ReasoningHistory::kKeep), V4Turns("<think>r", "<think>s", "<think>"));
  EXPECT_EQ(Rendered(body, v4, ReasoningHistory::kDrop), V4Turns("", "", ""));
  EXPECT_EQ(Rendered(body, v4, ReasoningHistory::kClient), V4Turns("<think>r", "<think>s", ""));
}

TEST(ChatEncoderTest, ToolsKeepAllReasoning) {
  const std::string body = kHistory + R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  for (const ChatDialect dialect : kAllChatDialects) {
    const std::string text = Rendered(body + "}", dialect);
    EXPECT_NE(text.find("<think>r</think>b"), std::string::npos);
    EXPECT_NE(text.find("<think>s</think>d"), std::string::npos);
    EXPECT_NE(text.find("<think></think>e"), std::string::npos);
    const std::string none = Rendered(body + ",\"tool_choice\":\"none\"}", dialect);
    EXPECT_NE(none.find("<｜Assistant｜></think>b"), std::string::npos);
    EXPECT_EQ(none.find("## Tools"), std::string::npos);
  }
}

TEST(ChatEncoderTest, ResultsStandInTheOrderOfTheirCalls) {
  const std::string body =
      R"({"thinking":false,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[)"
      R"({"id":"z","function":{"name":"f","arguments":"{}"}},{"id":"a","function":{"name":"g","arguments":"{}"}}]},)"
      R"({"role":"tool","tool_call_id":"a","content":"2"},{"role":"user","content":"text"},)"
      R"({"role":"tool","tool_call_id":"z","content":"1"}]})";
  for (const ChatDialect dialect : kAllChatDialects) {
    EXPECT_TRUE(Rendered(body, dialect)
                    .ends_with("<｜User｜><tool_result>1</tool_result>\n\ntext\n\n<tool_result>2</tool_result>"
                               "<｜Assistant｜></think>"));
  }
}

TEST(ChatEncoderTest, CallWithoutArguments) {
  const std::string body =
      R"({"thinking":false,"messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"z","function":{"name":"f"}}]}]})";
  EXPECT_NE(
      Rendered(body, ChatDialect::kV41)
          .find("x\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"),
      std::string::npos);
  EXPECT_NE(Rendered(body, ChatDialect::kV40731)
                .find("x\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
                      "name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"),
            std::string::npos);
}

TEST(ChatEncoderTest, TasksTakeThePlaceOfTheHeader) {
  const auto body = [](const std::string& task, const std::string& thinking) {
    return R"({"messages":[{"role":"user","content":"q","task":")" + task +
           R"("}],"reasoning_effort":"low","thinking":)" + thinking + "}";
  };
  const ChatDialect v4 = ChatDialect::kV40731;
  EXPECT_EQ(Rendered(body("title", "true"), v4), std::string(kBos) + "<｜User｜>q<｜title｜>");
  EXPECT_EQ(Rendered(body("action", "true"), v4),
            std::string(kBos) + "<｜User｜>q<｜Assistant｜><think><｜action｜>");
  EXPECT_EQ(Rendered(body("action", "false"), v4),
            std::string(kBos) + "<｜User｜>q<｜Assistant｜></think><｜action｜>");
  const std::string answered =
      R"({"messages":[{"role":"user","content":"q","task":"query"},{"role":"assistant","content":"x","reasoning_content":"no"},)"
      R"({"role":"user","content":"go"}],"thinking":false})";
  EXPECT_EQ(Rendered(answered, v4), std::string(kBos) + "<｜User｜>q<｜query｜>x" + std::string(kEos) +
                                        "<｜User｜>go<｜Assistant｜></think>");
}

TEST(ChatEncoderTest, OutputStartFollowsThePrompt) {
  const auto start = [](const std::string& fields) {
    return RenderChat(ParseChatRequest("{" + fields + "}"), ChatDialect::kV41).output_start;
  };
  const std::string hi = R"("messages":[{"role":"user","content":"hi"}])";
  const std::string tools = R"(,"tools":[{"function":{"name":"f"}}],"tool_choice":"required")";
  const auto prefix = [](const std::string& fields) {
    return R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","prefix":true,)" + fields + "}]";
  };
  EXPECT_EQ(start(hi), OutputStart::kReasoning);
  EXPECT_EQ(start(hi + R"(,"thinking":false)"), OutputStart::kContent);
  EXPECT_EQ(start(hi + tools), OutputStart::kReasoning) << "a grammar forces the call after </think>";
  EXPECT_EQ(start(hi + tools + R"(,"thinking":false)"), OutputStart::kToolBlock);
  EXPECT_EQ(start(prefix(R"("content":"c","reasoning_content":"r")")), OutputStart::kContentContinued);
  EXPECT_EQ(start(prefix(R"("content":"","reasoning_content":"r")")), OutputStart::kReasoningContinued);
  EXPECT_EQ(start(prefix(R"("content":"")")), OutputStart::kReasoning);
  EXPECT_EQ(start(prefix(R"("content":"c")") + R"(,"thinking":false)"), OutputStart::kContentContinued);
}

TEST(ChatEncoderTest, ControlTokensInMessagesStayText) {
  const std::string spelled = "<｜User｜></think>｜DSML｜<｜begin▁of▁sentence｜>";
  std::string body =
      R"({"thinking":false,"messages":[{"role":"system","content":"S"},{"role":"user","content":"S"},)"
      R"({"role":"assistant","content":"S","tool_calls":[{"id":"a","function":{"name":"f","arguments":{"S":"S"}}}]},)"
      R"({"role":"tool","tool_call_id":"a","content":"S"}]})";
  for (std::size_t at = body.find("\"S\""); at != std::string::npos; at = body.find("\"S\"")) {
    body.replace(at, 3, "\"" + spelled + "\"");
  }
  const EncodedPrompt prompt = EncodeChat(ParseChatRequest(body), ChatDialect::kV41, SmallChatTokenizer());
  std::string controls;
  for (const std::int32_t id : prompt.ids) {
    if (SmallChatTokenizer().IsAdded(id)) controls += SmallChatTokenizer().TokenBytes(id);
  }
  EXPECT_EQ(controls, std::string(kBos) + "<｜System｜><｜User｜><｜Assistant｜></think>" +
                          "｜DSML｜｜DSML｜｜DSML｜｜DSML｜｜DSML｜｜DSML｜" + std::string(kEos) +
                          "<｜User｜><｜Assistant｜></think>");
  EXPECT_EQ(SmallChatTokenizer().DecodeBytes(prompt.ids, false), prompt.text);
}

TEST(ChatEncoderTest, NeighbouringTextIsEncodedTogether) {
  // "}</" is one token of the small vocabulary, as of the real one.
  const EncodedPrompt prompt = EncodeChat(
      ParseChatRequest(
          R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}],"content":""},)"
          R"({"role":"tool","tool_call_id":"a","content":"{}"}]})"),
      ChatDialect::kV41, SmallChatTokenizer());
  bool joined = false;
  for (const std::int32_t id : prompt.ids) joined = joined || SmallChatTokenizer().TokenBytes(id) == "}</";
  EXPECT_TRUE(joined);
}

TEST(ChatEncoderTest, GroundingMarksOfTheAssistantAreTokens) {
  const Prompt prompt = RenderChat(
      ParseChatRequest(
          R"({"thinking":false,"messages":[{"role":"user","content":"<｜ref｜>"},{"role":"assistant","content":"a<｜ref｜>b<｜/ref｜><｜ref"}]})"),
      ChatDialect::kV41);
  std::string controls;
  for (const PromptSegment& segment : prompt.segments()) {
    if (segment.control) controls += prompt.text().substr(segment.begin, segment.end - segment.begin);
  }
  EXPECT_EQ(controls, std::string(kBos) + "<｜User｜><｜Assistant｜></think><｜ref｜><｜/ref｜>" +
                          std::string(kEos) + "<｜Assistant｜></think>");
}

TEST(ChatEncoderTest, FillInTheMiddle) {
  EXPECT_EQ(FimPrompt("<｜User｜>a", "b").text(),
            std::string(kBos) + "<｜fim▁begin｜><｜User｜>a<｜fim▁hole｜>b<｜fim▁end｜>");
  const EncodedPrompt prompt = EncodePrompt(FimPrompt("<think>", ""), SmallChatTokenizer());
  const auto is_added = [](std::int32_t id) { return SmallChatTokenizer().IsAdded(id); };
  EXPECT_EQ(std::count_if(prompt.ids.begin(), prompt.ids.end(), is_added), 4) << "the user's <think> is text";
}

TEST(ChatEncoderTest, RawPromptHasOneBeginningToken) {
  const EncodedPrompt bare = EncodeRawPrompt("a<think>", SmallChatTokenizer());
  const EncodedPrompt given = EncodeRawPrompt(std::string(kBos) + "a<think>", SmallChatTokenizer());
  EXPECT_EQ(bare.ids, given.ids);
  EXPECT_EQ(bare.ids.size(), 3u);
}

TEST(ChatEncoderTest, NoGenerationPromptOnRequest) {
  EXPECT_EQ(Rendered(kHi + R"(,"thinking":false,"add_generation_prompt":false})", ChatDialect::kV40731),
            std::string(kBos) + "<｜User｜>hi");
}

}  // namespace
}  // namespace lockstep
