#include "model/chat/self_test.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

#include "model/chat/control_tokens.h"
#include "model/chat/encoder.h"
#include "model/chat/output_parser.h"
#include "model/chat/tool_markup.h"

namespace lockstep {
namespace {

constexpr int kOfficialVocabulary = 129280;

using Ids = std::vector<std::int32_t>;

void CheckOfficialIds(const Tokenizer& tokenizer, ChatDialect dialect) {
  for (const OfficialToken& token : OfficialTokens(dialect)) {
    const std::optional<std::int32_t> id = tokenizer.SpecialId(token.text);
    if (id != token.id) {
      throw InputError("tokenizer.json: added_tokens: expected id " + std::to_string(token.id) + " for " +
                       std::string(token.text) + ", got " + (id ? std::to_string(*id) : "none"));
    }
  }
}

struct Golden {
  std::string_view name;
  std::string_view request;
  Ids ids;
};

std::vector<Golden> GoldenPrompts(ChatDialect dialect) {
  static constexpr std::string_view kHi = R"({"messages":[{"role":"user","content":"hi"}],"thinking":false})";
  static constexpr std::string_view kSystem =
      R"({"messages":[{"role":"system","content":"You are a helpful assistant."},)"
      R"({"role":"user","content":"Hello"}],"thinking":false})";
  std::vector<Golden> goldens = {{"user text", kHi, {0, 128803, 6366, 128804, 128822}}};
  if (!IsV41(dialect)) {
    goldens.push_back(
        {"system text", kSystem, {0, 3476, 477, 260, 11502, 22896, 16, 128803, 19923, 128804, 128822}});
    return goldens;
  }
  goldens.push_back(
      {"system text", kSystem, {0, 128799, 3476, 477, 260, 11502, 22896, 16, 128803, 19923, 128804, 128822}});
  goldens.push_back(
      {"effort line",
       R"({"messages":[{"role":"user","content":"hi"}],"reasoning_effort":75})",
       {0,   128799, 77666, 288,  9504, 482, 28,  223,   2402, 343,   16801, 223,    19,   15,     1457,  14,
        270, 4077,   270,   1990, 14,   270, 850, 15146, 270,  22805, 868,   128803, 6366, 128804, 128821}});
  goldens.push_back(
      {"JSON mode",
       R"({"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_object"},)"
       R"("thinking":false})",
       {0,   128799, 271,  372,   17038, 29478, 979, 3476,  74366, 29851, 42917,  304,  270,    2502,  37913,
        304, 20430,  1137, 24313, 4611,  3362,  582, 14479, 55774, 62773, 128803, 6366, 128804, 128822}});
  return goldens;
}

// lookup_stock(ticker: "NVDA") as the model writes it, end token included.
Ids GoldenCall(ChatDialect dialect) {
  if (IsV41(dialect)) {
    return {271,  30,   128825, 10699, 1018, 30,   128825, 34756, 2329, 1281, 12533,  1425,  13088, 1355,
            3816, 30,   128825, 10767, 2329, 1281, 86,     27654, 4,    3418, 1281,   11476, 3320,  76399,
            8088, 1718, 128825, 10767, 1018, 1718, 128825, 34756, 1018, 1718, 128825, 10699, 32,    1};
  }
  return {271,   30,     128825, 72461, 4941,  12548, 1018,   30,     128825, 40148,  5406,  2329,
          1281,  12533,  1425,   13088, 1355,  3816,  30,     128825, 41523,  2329,   1281,  86,
          27654, 4,      3418,   1281,  11476, 3320,  76399,  8088,   1718,   128825, 41523, 1018,
          1718,  128825, 40148,  5406,  1018,  1718,  128825, 72461,  4941,   12548,  32,    1};
}

ChatToolCall StockCall() {
  ChatToolCall call{.id = "", .name = "lookup_stock"};
  call.arguments.members.push_back({"ticker", Json::String("NVDA")});
  return call;
}

void CheckGolden(std::string_view name, const EncodedPrompt& prompt, const Ids& expected,
                 const Tokenizer& tokenizer) {
  if (prompt.ids != expected) {
    throw InputError("tokenizer.json: the known prompt \"" + std::string(name) +
                     "\" does not encode to its ids, expected the tokenizer of the dialect");
  }
  if (tokenizer.DecodeBytes(expected, /*skip_special=*/false) != prompt.text) {
    throw InputError("tokenizer.json: the ids of the known prompt \"" + std::string(name) +
                     "\" do not decode to it");
  }
}

int CheckGoldens(const Tokenizer& tokenizer, ChatDialect dialect) {
  int count = 0;
  for (const Golden& golden : GoldenPrompts(dialect)) {
    CheckGolden(golden.name, EncodeChat(ParseChatRequest(golden.request), dialect, tokenizer), golden.ids,
                tokenizer);
    ++count;
  }
  const ChatToolCall call = StockCall();
  Prompt prompt;
  AppendToolCalls({&call, 1}, dialect, &prompt);
  prompt.Control(kEosText);
  CheckGolden("tool call", EncodePrompt(prompt, tokenizer), GoldenCall(dialect), tokenizer);
  return count + 1;
}

std::string ReadWhole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A case is a list of messages, or an object with them and tools.
Json ReadCase(const std::filesystem::path& path) {
  Json body = ReadJson(ReadWhole(path), {.root = path.string()});
  if (!body.is_array()) return body;
  Json object = Json::Object();
  object.members.push_back({"messages", std::move(body)});
  return object;
}

bool HasImages(const Json& body) { return SpacedJson(body).find("\"type\": \"image") != std::string::npos; }

// The cases do not all say in which mode they were made, so each mode and effort is tried.
bool RendersTo(ChatRequest request, ChatDialect dialect, const std::string& expected) {
  using Level = ReasoningEffort::Level;
  // The checkpoint's encoder opens no new turn after an answer.
  request.add_generation_prompt =
      request.messages.empty() || request.messages.back().role != ChatRole::kAssistant;
  request.thinking = false;
  if (RenderChat(request, dialect).text() == expected) return true;
  request.thinking = true;
  for (const Level level : {Level::kHigh, Level::kLow, Level::kXhigh, Level::kMax}) {
    request.effort = {.level = level};
    if (RenderChat(request, dialect).text() == expected) return true;
  }
  return false;
}

void Replay(const std::filesystem::path& tests, ChatDialect dialect, ChatSelfTestReport* report) {
  if (!std::filesystem::is_directory(tests)) return;
  for (const auto& entry : std::filesystem::directory_iterator(tests)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with("test_input_") || !name.ends_with(".json")) continue;
    const std::string number = name.substr(11, name.size() - 11 - 5);
    const std::filesystem::path output = tests / ("test_output_" + number + ".txt");
    const Json body = ReadCase(entry.path());
    if (HasImages(body)) {
      ++report->left_out;
      continue;
    }
    if (!RendersTo(ParseChatRequest(body, {.developer_is_user_turn = true}), dialect, ReadWhole(output))) {
      throw InputError(output.string() + ": the dialect " + std::string(ChatDialectName(dialect)) +
                       " renders other bytes, expected the dialect of the checkpoint");
    }
    ++report->replayed;
  }
}

ChatMessage SampleAnswer() {
  ChatMessage answer{.role = ChatRole::kAssistant,
                     .content = "One moment \U0001F469\u200D\U0001F467 a<b </ x."};
  answer.reasoning = "Think: \u4F60\u597D.\n\nThen <call> it.";
  ChatToolCall second{.id = "", .name = "bash"};
  second.arguments =
      ReadJson(R"({"command": "ls 2>&1 </dev/null\n", "limits": {"n": 1.0, "all": [true, null]}})");
  answer.tool_calls = {StockCall(), second, {.id = "", .name = "now"}};
  return answer;
}

void CheckAnswer(const ChatMessage& answer, const std::vector<OutputEvent>& events, const std::string& split) {
  const CompletedOutput output = CollectOutput(events);
  bool same = output.reasoning == answer.reasoning && output.content == answer.content &&
              output.finish_reason == FinishReason::kToolCalls &&
              output.tool_calls.size() == answer.tool_calls.size();
  for (std::size_t i = 0; same && i < answer.tool_calls.size(); ++i) {
    same = output.tool_calls[i].name == answer.tool_calls[i].name &&
           output.tool_calls[i].arguments == SpacedJson(answer.tool_calls[i].arguments);
  }
  if (!same)
    throw InputError("tokenizer.json: an answer does not survive rendering and parsing, split into " + split);
}

int CheckRoundTrips(const Tokenizer& tokenizer, ChatDialect dialect) {
  const ControlTokens tokens = ControlTokens::Of(tokenizer, dialect);
  const ChatMessage answer = SampleAnswer();
  const EncodedPrompt rendered = EncodePrompt(RenderAnswer(answer, dialect, /*thinking=*/true), tokenizer);
  int count = 0;
  {
    OutputParser parser(tokenizer, tokens, {.start = OutputStart::kReasoning});
    std::vector<OutputEvent> events;
    for (const std::int32_t id : rendered.ids) parser.PushId(id, &events);
    parser.Finish(OutputEnd::kEndToken, &events);
    CheckAnswer(answer, events, "ids");
    ++count;
  }
  const std::string_view text = rendered.text;
  for (const std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{5}, std::size_t{7},
                                 std::size_t{11}, std::size_t{23}, text.size()}) {
    OutputParser parser(tokenizer, tokens,
                        {.start = OutputStart::kReasoning, .spelled_markers = SpelledMarkers::Set::kAll});
    std::vector<OutputEvent> events;
    for (std::size_t at = 0; at < text.size(); at += size) parser.PushText(text.substr(at, size), &events);
    parser.Finish(OutputEnd::kEndToken, &events);
    CheckAnswer(answer, events, std::to_string(size) + " bytes");
    ++count;
  }
  return count;
}

}  // namespace

ChatSelfTestReport RunChatSelfTest(const Tokenizer& tokenizer, ChatDialect dialect, const std::string& dir) {
  ChatSelfTestReport report;
  ControlTokens::Of(tokenizer, dialect);
  if (tokenizer.vocab_size() == kOfficialVocabulary) {
    CheckOfficialIds(tokenizer, dialect);
    report.official_ids = true;
    report.goldens = CheckGoldens(tokenizer, dialect);
  }
  Replay(std::filesystem::path(dir) / "encoding" / "tests", dialect, &report);
  report.round_trips = CheckRoundTrips(tokenizer, dialect);
  return report;
}

}  // namespace lockstep
