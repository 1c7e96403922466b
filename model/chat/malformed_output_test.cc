// Oracle: spec page server.md section 6, public reports 14 to 24; each test has its number. 18 to 20, 22 and 24
// are about prompts.
#include <gtest/gtest.h>

#include <string>

#include "model/chat/encoder.h"
#include "model/chat/test_output.h"
#include "model/chat/test_tokenizer.h"

namespace lockstep {
namespace {

const std::string kEos = "<｜end▁of▁sentence｜>";
const OutputParserOptions kThinking{.start = OutputStart::kReasoning};

const std::string kInvoke =
    "<｜DSML｜ invoke name=\"bash\">\n<｜DSML｜ parameter name=\"command\" string=\"true\">ls 2>&1</｜DSML｜ "
    "parameter>\n"
    "</｜DSML｜ invoke>";
const std::string kBashCall = "bash({\"command\": \"ls 2>&1\"})";

std::string Parsed(const std::string& text, const OutputParserOptions& options = {}) {
  return Summary(ParseEverySplit(text, options).output);
}

TEST(MalformedOutputTest, Report14NothingOfTheCloserInArguments) {
  EXPECT_EQ(Parsed("<｜DSML｜ calls>\n" + kInvoke + "\n</｜DSML｜ calls>" + kEos),
            "||" + kBashCall + "|tool_calls");
}

TEST(MalformedOutputTest, Report15MissingBlockOpener) {
  EXPECT_EQ(Parsed("I look.\n\n" + kInvoke + "\n</｜DSML｜ calls>" + kEos),
            "|I look.|" + kBashCall + "|tool_calls");
  EXPECT_EQ(Parsed("I look.\n\n" + kInvoke + kEos), "|I look.|" + kBashCall + "|tool_calls");
  const ParsedRun run = ParseEverySplit(kInvoke + "\n" + kInvoke, {});
  EXPECT_EQ(Summary(run.output), "||" + kBashCall + " " + kBashCall + "|tool_calls");
  EXPECT_EQ(run.stats.Of(ParserAnomaly::kBareInvoke), 2u);
}

TEST(MalformedOutputTest, Report15MalformedTagsLeaveContentClean) {
  // A parameter without its invoke, unknown tags, stray closers, a token without its bracket.
  EXPECT_EQ(Parsed("a\n\n<｜DSML｜ parameter name=\"x\" string=\"true\">1</｜DSML｜ parameter>" + kEos),
            "|a||stop");
  EXPECT_EQ(Parsed("a</｜DSML｜ calls> b" + kEos), "|a b||stop");
  EXPECT_EQ(Parsed("a <｜DSML｜thing> b" + kEos), "|a thing> b||stop");
  EXPECT_EQ(Parsed("a ｜DSML｜ b" + kEos), "|a  b||stop");
  // No name: nothing can be called.
  EXPECT_EQ(Parsed("a\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" + kEos),
            "|a||stop");
  // Closers left out.
  EXPECT_EQ(Parsed("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
                   "string=\"true\">1</｜DSML｜ invoke>\n"
                   "</｜DSML｜ calls>"),
            "||f({\"x\": \"1\"})|tool_calls");
  EXPECT_EQ(
      Parsed("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ calls>"),
      "||f({}) g({})|tool_calls");
  EXPECT_EQ(Parsed("<｜DSML｜ calls\n<｜DSML｜ invoke name=\"f\"\n<｜DSML｜ parameter name=\"x\" "
                   "string=\"true\">1</｜DSML｜ parameter\n"
                   "</｜DSML｜ invoke\n</｜DSML｜ calls"),
            "||f({\"x\": \"1\"})|tool_calls")
      << "brackets left out";
  // Quotes left out.
  EXPECT_EQ(Parsed("<｜DSML｜ calls>\n<｜DSML｜ invoke name=f>\n<｜DSML｜ parameter name=x "
                   "string=false>1</｜DSML｜ parameter>\n"
                   "</｜DSML｜ invoke>\n</｜DSML｜ calls>"),
            "||f({\"x\": \"1\"})|tool_calls");
}

TEST(MalformedOutputTest, Report16OpenerInsideReasoning) {
  const ParsedRun run =
      ParseEverySplit("let me look\n\n<｜DSML｜ calls>\n" + kInvoke + "\n</｜DSML｜ calls>" + kEos, kThinking);
  EXPECT_EQ(Summary(run.output), "let me look||" + kBashCall + "|tool_calls");
  EXPECT_EQ(run.stats.Of(ParserAnomaly::kUnclosedReasoning), 1u);
  EXPECT_EQ(Parsed("let me look\n" + kInvoke + kEos, kThinking), "let me look||" + kBashCall + "|tool_calls");
}

TEST(MalformedOutputTest, Report17BothSpellingsAtEverySplit) {
  for (const std::string space : {"", " "}) {
    const std::string block = space.empty() ? "tool_calls" : " calls";
    const std::string worked = "\n\n<｜DSML｜" + block + ">\n<｜DSML｜" + space +
                               "invoke name=\"lookup_stock\">\n<｜DSML｜" + space +
                               "parameter name=\"ticker\" string=\"true\">NVDA</｜DSML｜" + space +
                               "parameter>\n</｜DSML｜" + space + "invoke>\n</｜DSML｜" + block + ">" + kEos;
    EXPECT_EQ(Parsed(worked), "||lookup_stock({\"ticker\": \"NVDA\"})|tool_calls");
  }
}

TEST(MalformedOutputTest, Report17JsonBody) {
  const auto call = [](const std::string& body) {
    return "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + body +
           "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" + kEos;
  };
  EXPECT_EQ(Parsed(call("{\"a\": 1.0, \"b\": \"</x>\"}")), "||f({\"a\": 1.0, \"b\": \"</x>\"})|tool_calls");
  EXPECT_EQ(Parsed(call("{\"a\": ")), "||f({})|tool_calls");
  EXPECT_EQ(Parsed(call("[1]")), "||f({})|tool_calls");
  EXPECT_EQ(Parsed(call("words")), "||f({})|tool_calls");
}

TEST(MalformedOutputTest, Report18And19EffortLevelsGiveDifferentPrompts) {
  const auto prompt = [](ChatDialect dialect, const std::string& effort) {
    return RenderChat(ParseChatRequest(R"({"messages":[{"role":"user","content":"q"}],"reasoning_effort":")" +
                                       effort + "\"}"),
                      dialect)
        .text();
  };
  EXPECT_NE(prompt(ChatDialect::kV41, "high").find("Reasoning Effort: 75 "), std::string::npos);
  EXPECT_NE(prompt(ChatDialect::kV40731, "low"), prompt(ChatDialect::kV40731, "high"));
  EXPECT_NE(prompt(ChatDialect::kV40731, "high"), prompt(ChatDialect::kV40731, "max"));
}

TEST(MalformedOutputTest, Report20LiteralImageTokenIsText) {
  const Prompt prompt = RenderChat(
      ParseChatRequest(R"({"thinking":false,"messages":[{"role":"user","content":"<｜deepseek_image｜>"}]})"),
      ChatDialect::kV41);
  EXPECT_EQ(prompt.segments().size(), 5u);
  EXPECT_NE(prompt.text().find("<｜User｜><｜deepseek_image｜><｜Assistant｜>"), std::string::npos);
}

TEST(MalformedOutputTest, Report21ContentHasNoMarkupAndArgumentsAreComplete) {
  EXPECT_EQ(
      Parsed("</think>I compute.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"calculator\">\n"
             "<｜DSML｜ parameter name=\"expression\" string=\"true\">2 < 3 && 4 > 1</｜DSML｜ parameter>\n"
             "<｜DSML｜ parameter name=\"precision\" string=\"false\">10</｜DSML｜ parameter>\n"
             "</｜DSML｜ invoke>\n</｜DSML｜ calls>" +
                 kEos,
             kThinking),
      "|I compute.|calculator({\"expression\": \"2 < 3 && 4 > 1\", \"precision\": 10})|tool_calls");
}

TEST(MalformedOutputTest, Report22HistoryNeverShowsAParameterNamedArguments) {
  const auto prompt = [](const std::string& arguments) {
    return RenderChat(ParseChatRequest(
                          R"({"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"a","function":)"
                          R"({"name":"f","arguments":)" +
                          arguments + "}}]}]}"),
                      ChatDialect::kV41)
        .text();
  };
  for (const char* arguments : {R"({"x":1})", R"("{\"x\":1}")", R"("\"{\\\"x\\\":1}\"")"}) {
    EXPECT_NE(prompt(arguments).find("parameter name=\"x\" string=\"false\">1<"), std::string::npos)
        << arguments;
    EXPECT_EQ(prompt(arguments).find("name=\"arguments\""), std::string::npos) << arguments;
  }
  EXPECT_THROW(prompt("\"words\""), RequestError);
}

TEST(MalformedOutputTest, Report23CharactersSplitOverTokens) {
  EXPECT_EQ(Parsed("a👩b你" + kEos), "|a👩b你||stop");
  // The limit falls inside a character: one replacement, whatever the split.
  const std::string cut = std::string("a👩b").substr(0, 4);
  std::vector<std::int32_t> bytes;
  for (const char byte : cut) bytes.push_back(static_cast<unsigned char>(byte));
  EXPECT_EQ(Summary(ParseIds(bytes, {}, OutputEnd::kLength).output), "|a\uFFFD||length");
  EXPECT_EQ(Summary(ParseText({cut}, {}, OutputEnd::kLength).output), "|a\uFFFD||length");
  // Text goes on after a broken character.
  bytes.push_back('b');
  EXPECT_EQ(Summary(ParseIds(bytes, {}).output), "|a\uFFFDb||stop");
}

TEST(MalformedOutputTest, Report23CharactersSplitInsideArguments) {
  std::vector<std::int32_t> ids = ByteIds(
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" string=\"true\">👩");
  ids.pop_back();
  for (const std::int32_t id : MergedIds("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"))
    ids.push_back(id);
  EXPECT_EQ(Summary(ParseIds(ids, {}).output), "||f({\"x\": \"\uFFFD\"})|tool_calls");
}

TEST(MalformedOutputTest, Report24MissingReasoningIsEmpty) {
  const std::string prompt =
      RenderChat(
          ParseChatRequest(
              R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":)"
              R"([{"id":"a","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"a","content":"r"}],)"
              R"("tools":[{"function":{"name":"f"}}]})"),
          ChatDialect::kV41)
          .text();
  EXPECT_NE(prompt.find("<｜Assistant｜><think></think>\n\n<｜DSML｜ calls>"), std::string::npos);
}

TEST(MalformedOutputTest, ValuesThatAreNoJsonBecomeStrings) {
  const auto value = [](const std::string& text) {
    return Parsed("<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" string=\"false\">" + text +
                  "</｜DSML｜ parameter>\n</｜DSML｜ invoke>");
  };
  EXPECT_EQ(value("True"), "||f({\"x\": \"True\"})|tool_calls");
  EXPECT_EQ(value("{\"a\": "), "||f({\"x\": \"{\\\"a\\\": \"})|tool_calls");
  EXPECT_EQ(value(""), "||f({\"x\": \"\"})|tool_calls");
  EXPECT_EQ(value("NaN"), "||f({\"x\": \"NaN\"})|tool_calls");
  EXPECT_EQ(value("1e400"), "||f({\"x\": 1e400})|tool_calls") << "valid JSON, whatever it means";
  EXPECT_EQ(value("[\"\\ud800\"]"), "||f({\"x\": [\"\uFFFD\"]})|tool_calls")
      << "our own request reader must take it back";
}

TEST(MalformedOutputTest, FirstOfTwoParametersWithOneNameStands) {
  const ParsedRun run = ParseEverySplit(
      "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" string=\"true\">1</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"x\" string=\"true\">2</｜DSML｜ parameter>\n</｜DSML｜ invoke>",
      {});
  EXPECT_EQ(Summary(run.output), "||f({\"x\": \"1\"})|tool_calls");
  EXPECT_EQ(run.stats.Of(ParserAnomaly::kDuplicateParameter), 1u);
}

TEST(MalformedOutputTest, EndlessTagEndsSomewhere) {
  const std::string text = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" + std::string(100000, 'a');
  EXPECT_EQ(ParseIds(MergedIds(text), {}, OutputEnd::kLength).output.tool_calls.size(), 0u);
  std::string newlines = "x" + std::string(1000000, '\n');
  EXPECT_EQ(ParseIds(ByteIds(newlines), {}).output.content, newlines);
}

}  // namespace
}  // namespace lockstep
