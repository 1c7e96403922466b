// Oracle: spec page encoding.md section 9.
#include "model/chat/output_parser.h"

#include <gtest/gtest.h>

#include <string>

#include "model/chat/test_output.h"
#include "model/chat/test_tokenizer.h"

namespace lockstep {
namespace {

const std::string kEos = "<｜end▁of▁sentence｜>";

std::string Parsed(const std::string& text, const OutputParserOptions& options = {},
                   OutputEnd end = OutputEnd::kEndToken) {
  return Summary(ParseEverySplit(text, options, end).output);
}

const OutputParserOptions kThinking{.start = OutputStart::kReasoning};

std::string Call(const std::string& space, const std::string& body) {
  const bool v41 = !space.empty();
  const std::string block = v41 ? " calls" : "tool_calls";
  return "<｜DSML｜" + block + ">\n<｜DSML｜" + space + "invoke name=\"f\">\n" + body + "\n</｜DSML｜" + space +
         "invoke>\n</｜DSML｜" + block + ">";
}

std::string Parameter(const std::string& space, const std::string& name, const std::string& is_string,
                      const std::string& value) {
  return "<｜DSML｜" + space + "parameter name=\"" + name + "\" string=\"" + is_string + "\">" + value +
         "</｜DSML｜" + space + "parameter>";
}

TEST(OutputParserTest, ReasoningThenContent) {
  EXPECT_EQ(Parsed("\n\nthink\n\nmore\n\n</think>\n\nHello\nthere\n" + kEos, kThinking),
            "think\n\nmore|Hello\nthere\n||stop");
  EXPECT_EQ(Parsed("</think>Hi" + kEos, kThinking), "|Hi||stop");
  EXPECT_EQ(Parsed("\nHi" + kEos), "|Hi||stop");
  EXPECT_EQ(Parsed("a < b </ c <" + kEos), "|a < b </ c <||stop");
}

TEST(OutputParserTest, ContinuedTextKeepsItsFirstNewlines) {
  EXPECT_EQ(Parsed("\n\nmore</think>\nx", {.start = OutputStart::kReasoningContinued}), "\n\nmore|x||stop");
  EXPECT_EQ(Parsed("\n\nmore", {.start = OutputStart::kContentContinued}), "|\n\nmore||stop");
}

TEST(OutputParserTest, StrayThinkMarkersAreLeftOut) {
  EXPECT_EQ(Parsed("<think>a<think>b</think>c</think>d" + kEos, kThinking), "ab|cd||stop");
}

TEST(OutputParserTest, BothSpellingsOfCalls) {
  for (const std::string space : {"", " "}) {
    const std::string body = Parameter(space, "ticker", "true", "NVDA") + "\n" +
                             Parameter(space, "n", "false", "1.0") + "\n" +
                             Parameter(space, "o", "false", " {\"a\": [1, null]} ");
    EXPECT_EQ(Parsed("why</think>text\n\n" + Call(space, body) + kEos, kThinking),
              "why|text|f({\"ticker\": \"NVDA\", \"n\": 1.0, \"o\": {\"a\": [1, null]}})|tool_calls");
  }
}

TEST(OutputParserTest, StringsAreRawAndEscaped) {
  const std::string value = "a\"b\\c\n<tag> & </x> </ < 'q'\t\x01 你好 😀";
  EXPECT_EQ(Parsed(Call(" ", Parameter(" ", "k", "true", value))),
            "||f({\"k\": \"a\\\"b\\\\c\\n<tag> & </x> </ < 'q'\\t\\u0001 你好 😀\"})|tool_calls");
}

TEST(OutputParserTest, ParameterNamesMayHoldQuotesAndBrackets) {
  EXPECT_EQ(
      Parsed(Call(" ", Parameter(" ", "q\"uote", "true", "1") + Parameter(" ", "<key>", "true", "2") +
                           Parameter(" ", "", "true", "3") + Parameter(" ", "a string= b", "false", "4"))),
      "||f({\"q\\\"uote\": \"1\", \"<key>\": \"2\", \"\": \"3\", \"a string= b\": 4})|tool_calls");
}

TEST(OutputParserTest, SeveralCallsAndEmptyArguments) {
  EXPECT_EQ(Parsed("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n<｜DSML｜ invoke "
                   "name=\"g\">\n" +
                   Parameter(" ", "x", "true", "") + "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" + kEos),
            "||f({}) g({\"x\": \"\"})|tool_calls");
}

TEST(OutputParserTest, ControlTokensInsideAValueAreText) {
  EXPECT_EQ(
      Parsed(Call(" ", Parameter(" ", "code", "true",
                                 "<think>x</think> <｜DSML｜ invoke name=\"y\"> ｜DSML｜ <｜User｜>"))),
      "||f({\"code\": \"<think>x</think> <｜DSML｜ invoke name=\\\"y\\\"> ｜DSML｜ <｜User｜>\"})|tool_calls");
}

TEST(OutputParserTest, ArgumentsStreamWhileTheyAreSampled) {
  OutputParser parser(SmallChatTokenizer(), ControlTokens::Of(SmallChatTokenizer(), ChatDialect::kV41), {});
  std::vector<OutputEvent> events;
  for (const std::int32_t id : ByteIds("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
                                       "name=\"c\" string=\"true\">ls -")) {
    parser.PushId(id, &events);
  }
  const auto arguments = [&] {
    std::string text;
    for (const OutputEvent& event : events) {
      if (const auto* delta = std::get_if<ToolCallArgumentsDelta>(&event)) text += delta->text;
    }
    return text;
  };
  EXPECT_TRUE(std::holds_alternative<ToolCallBegin>(events.front()));
  EXPECT_EQ(arguments(), "{\"c\": \"ls -");
  for (const std::int32_t id : ByteIds("l <")) parser.PushId(id, &events);
  EXPECT_EQ(arguments(), "{\"c\": \"ls -l ") << "\"<\" may begin the closing tag";
  for (const std::int32_t id : ByteIds("x")) parser.PushId(id, &events);
  EXPECT_EQ(arguments(), "{\"c\": \"ls -l <x");
}

TEST(OutputParserTest, VisibleTextIsNotHeldWithoutReason) {
  OutputParser parser(SmallChatTokenizer(), ControlTokens::Of(SmallChatTokenizer(), ChatDialect::kV41), {});
  std::vector<OutputEvent> events;
  std::string given;
  for (const char byte : std::string("Hello world, a.b-c:d")) {
    given += byte;
    parser.PushId(static_cast<unsigned char>(byte), &events);
    EXPECT_EQ(CollectOutput(events).content, given);
  }
}

TEST(OutputParserTest, LengthLimitDropsTheUnfinishedCall) {
  const std::string one = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" +
                          Parameter(" ", "x", "true", "1") + "\n</｜DSML｜ invoke>\n";
  const std::string cut =
      "<｜DSML｜ invoke name=\"g\">\n<｜DSML｜ parameter name=\"y\" string=\"true\">unfinished";
  EXPECT_EQ(Parsed("text\n\n" + one + cut, {}, OutputEnd::kLength), "|text|f({\"x\": \"1\"})|length");
  EXPECT_EQ(Parsed(one, {}, OutputEnd::kLength), "||f({\"x\": \"1\"})|length");
  EXPECT_EQ(Parsed(one + "</｜DSML｜ calls>", {}, OutputEnd::kLength), "||f({\"x\": \"1\"})|tool_calls");
  EXPECT_EQ(Parsed("text\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke na", {}, OutputEnd::kLength), "|text||length");
  EXPECT_EQ(Parsed("text\n\n<｜DSML｜", {}, OutputEnd::kLength), "|text||length");
  EXPECT_EQ(Parsed("thin", kThinking, OutputEnd::kLength), "thin|||length");
  EXPECT_EQ(Parsed("done" + kEos, {}, OutputEnd::kLength), "|done||stop")
      << "the limit and the end fell together";
}

TEST(OutputParserTest, EndInsideACall) {
  const std::string open =
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + Parameter(" ", "x", "true", "1");
  EXPECT_EQ(Parsed(open + "\n</｜DSML｜ invoke>" + kEos), "||f({\"x\": \"1\"})|tool_calls")
      << "no block closer";
  EXPECT_EQ(Parsed(open + kEos), "|||stop");
  EXPECT_EQ(
      Parsed(
          "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" string=\"true\">1" +
          kEos),
      "|||stop");
  const ParsedRun run = ParseEverySplit(open + kEos, {});
  EXPECT_EQ(run.stats.Of(ParserAnomaly::kTruncatedCall), 1u);
}

TEST(OutputParserTest, CallsAreSuppressedWhenToolsAreOff) {
  const ParsedRun run =
      ParseEverySplit("hm</think>text\n\n" + Call(" ", Parameter(" ", "x", "true", "1")) + "tail" + kEos,
                      {.start = OutputStart::kReasoning, .deliver_calls = false});
  EXPECT_EQ(Summary(run.output), "hm|text||stop");
  EXPECT_EQ(run.stats.Of(ParserAnomaly::kUndeliveredCall), 1u);
}

TEST(OutputParserTest, OneCallWithoutParallelCalls) {
  const std::string two =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n" +
      Parameter("", "x", "true", "1") + "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + kEos;
  EXPECT_EQ(Parsed(two, {.max_calls = 1}), "||f({})|tool_calls");
}

TEST(OutputParserTest, StartsInsideTheBlockOfTheprompt) {
  EXPECT_EQ(Parsed("<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" + kEos,
                   {.start = OutputStart::kToolBlock}),
            "||f({})|tool_calls");
}

TEST(OutputParserTest, StopStringsCutVisibleTextOnly) {
  const OutputParserOptions stops{.start = OutputStart::kReasoning, .stops = {"STOP", "\n\nUser:", ""}};
  EXPECT_EQ(Parsed("STOP</think>ab STO STOP cd" + kEos, stops), "STOP|ab STO ||stop");
  EXPECT_EQ(Parsed("</think>a\n\nUser: b", stops), "|a||stop");
  EXPECT_EQ(Parsed("</think>a\n\nUse", stops), "|a\n\nUse||stop");
  EXPECT_EQ(Parsed("</think>x\n\n" + Call(" ", Parameter(" ", "k", "true", "STOP")), stops),
            "|x|f({\"k\": \"STOP\"})|tool_calls");
  OutputParser parser(SmallChatTokenizer(), ControlTokens::Of(SmallChatTokenizer(), ChatDialect::kV41),
                      {.stops = {"STOP"}});
  std::vector<OutputEvent> events;
  for (const std::int32_t id : ByteIds("a STOP")) parser.PushId(id, &events);
  EXPECT_TRUE(parser.complete());
  EXPECT_TRUE(parser.stopped_by_string());
}

TEST(OutputParserTest, ReasoningTokensAreCounted) {
  const ParsedRun run = ParseIds(MergedIds("abc</think>de" + kEos), kThinking);
  EXPECT_EQ(run.stats.reasoning_tokens, 3u);
  EXPECT_EQ(run.stats.tokens, 7u);
}

TEST(OutputParserTest, SpelledMarkersCountOnlyOnRequest) {
  const std::string spelled =
      "x\n\n<|DSML| calls>\n<|DSML| invoke name=\"f\">\n\n</|DSML| invoke>\n</|DSML| calls>";
  const auto parse = [&](SpelledMarkers::Set set, const std::string& text) {
    std::vector<std::int32_t> ids;
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return Summary(ParseIds(ids, {.spelled_markers = set}).output);
  };
  EXPECT_EQ(parse(SpelledMarkers::Set::kNone, spelled), "|" + spelled + "||stop");
  EXPECT_EQ(parse(SpelledMarkers::Set::kDsml, spelled), "|x|f({})|tool_calls");
  EXPECT_EQ(parse(SpelledMarkers::Set::kNone, "a</think>｜DSML｜b"), "|a</think>｜DSML｜b||stop");
  EXPECT_EQ(parse(SpelledMarkers::Set::kDsml, "a</think>|DSM"), "|a</think>|DSM||stop");
}

TEST(OutputParserTest, HiddenTokensAreNotShown) {
  const ParsedRun run = ParseIds(MergedIds("a<｜User｜>b<|place_holder_mm_span_0021|>c<｜ref｜>d" + kEos), {});
  EXPECT_EQ(Summary(run.output), "|abc<｜ref｜>d||stop");
  EXPECT_EQ(run.stats.Of(ParserAnomaly::kHiddenToken), 2u);
}

TEST(OutputParserTest, NothingFollowsTheEnd) {
  EXPECT_EQ(Parsed("a" + kEos + "b\n\n" + Call(" ", "")), "|a||stop");
  const ParsedRun run = ParseEverySplit(Call(" ", "") + "more text" + kEos, {});
  EXPECT_EQ(Summary(run.output), "||f({})|tool_calls");
}

TEST(OutputParserTest, IdsOutsideTheVocabularyAreHarmless) {
  std::vector<std::int32_t> ids = MergedIds("a");
  ids.insert(ids.end(), {-1, 1 << 30, SmallChatTokenizer().vocab_size()});
  EXPECT_EQ(Summary(ParseIds(ids, {}).output), "|a||stop");
}

TEST(OutputParserTest, DefaultCallIdsSortAsCallsDo) {
  OutputParser parser(SmallChatTokenizer(), ControlTokens::Of(SmallChatTokenizer(), ChatDialect::kV41), {});
  std::vector<OutputEvent> events;
  std::string text = "<｜DSML｜ calls>\n";
  for (int i = 0; i < 12; ++i) text += "<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n";
  for (const std::int32_t id : MergedIds(text)) parser.PushId(id, &events);
  parser.Finish(OutputEnd::kEndToken, &events);
  const CompletedOutput output = CollectOutput(events);
  ASSERT_EQ(output.tool_calls.size(), 12u);
  for (std::size_t i = 1; i < 12; ++i) EXPECT_LT(output.tool_calls[i - 1].id, output.tool_calls[i].id);
}

}  // namespace
}  // namespace lockstep
