// Any ids and any bytes as a model's output: two splits of it give the same answer, all text is valid UTF-8,
// and every finished call has a JSON object as arguments. The first byte chooses the options; in ids a byte of
// 0xF8 and above stands for a control token.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/fuzz/fuzz_target.h"
#include "model/chat/json.h"
#include "model/chat/output_parser.h"
#include "model/chat/test_tokenizer.h"
#include "model/text/utf8.h"

namespace {

using namespace lockstep;

const ControlTokens& Tokens() {
  static const ControlTokens tokens = ControlTokens::Of(SmallChatTokenizer(), ChatDialect::kV41);
  return tokens;
}

OutputParserOptions OptionsOf(std::uint8_t byte) {
  static constexpr OutputStart kStarts[] = {OutputStart::kReasoning, OutputStart::kReasoningContinued,
                                            OutputStart::kContent, OutputStart::kToolBlock};
  OutputParserOptions options;
  options.start = kStarts[byte & 3];
  options.deliver_calls = (byte & 4) == 0;
  options.max_calls = (byte & 8) != 0 ? 1 : 0;
  if ((byte & 16) != 0) options.stops = {"</", "stop", "\n\n"};
  if ((byte & 32) != 0) options.spelled_markers = SpelledMarkers::Set::kDsml;
  options.call_id = [](int index) { return std::to_string(index); };
  return options;
}

std::int32_t ControlId(std::uint8_t byte) {
  static constexpr std::string_view kTokens[] = {kDsmlText, kDsmlText, kThinkText,  kThinkEndText,
                                                 kEosText,  kUserText, "<｜ref｜>", kBosText};
  return *SmallChatTokenizer().SpecialId(kTokens[byte - 0xF8]);
}

CompletedOutput Checked(const std::vector<OutputEvent>& events) {
  CompletedOutput output = CollectOutput(events);
  LOCKSTEP_CHECK(FindInvalidUtf8(output.reasoning) == std::string_view::npos);
  LOCKSTEP_CHECK(FindInvalidUtf8(output.content) == std::string_view::npos);
  for (const CompletedCall& call : output.tool_calls) {
    LOCKSTEP_CHECK(!call.name.empty() && FindInvalidUtf8(call.name) == std::string_view::npos);
    LOCKSTEP_CHECK(ReadJson(call.arguments).is_object());
  }
  return output;
}

CompletedOutput ParseIds(std::string_view data, const OutputParserOptions& options, OutputEnd end) {
  OutputParser parser(SmallChatTokenizer(), Tokens(), options);
  std::vector<OutputEvent> events;
  for (const char c : data) {
    const std::uint8_t byte = static_cast<std::uint8_t>(c);
    parser.PushId(byte < 0xF8 ? byte : ControlId(byte), &events);
  }
  parser.Finish(end, &events);
  return Checked(events);
}

CompletedOutput ParseText(std::string_view data, OutputParserOptions options, OutputEnd end, std::size_t step) {
  options.spelled_markers = SpelledMarkers::Set::kAll;
  OutputParser parser(SmallChatTokenizer(), Tokens(), options);
  std::vector<OutputEvent> events;
  for (std::size_t at = 0; at < data.size(); at += step) parser.PushText(data.substr(at, step), &events);
  parser.Finish(end, &events);
  return Checked(events);
}

bool Same(const CompletedOutput& a, const CompletedOutput& b) {
  bool same = a.reasoning == b.reasoning && a.content == b.content && a.finish_reason == b.finish_reason &&
              a.tool_calls.size() == b.tool_calls.size();
  for (std::size_t i = 0; same && i < a.tool_calls.size(); ++i) {
    same =
        a.tool_calls[i].name == b.tool_calls[i].name && a.tool_calls[i].arguments == b.tool_calls[i].arguments;
  }
  return same;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const OutputParserOptions options = OptionsOf(data[0]);
  const OutputEnd end = (data[0] & 64) != 0 ? OutputEnd::kLength : OutputEnd::kEndToken;
  const std::string_view output(reinterpret_cast<const char*>(data) + 1, size - 1);
  ParseIds(output, options, end);
  const CompletedOutput whole = ParseText(output, options, end, output.size());
  LOCKSTEP_CHECK(Same(whole, ParseText(output, options, end, 1)));
  LOCKSTEP_CHECK(Same(whole, ParseText(output, options, end, 3)));
  return 0;
}
