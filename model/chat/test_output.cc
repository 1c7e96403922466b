#include "model/chat/test_output.h"

#include <gtest/gtest.h>

#include "model/chat/test_tokenizer.h"

namespace lockstep {
namespace {

const ControlTokens& Tokens() {
  static const ControlTokens tokens = ControlTokens::Of(SmallChatTokenizer(), ChatDialect::kV41);
  return tokens;
}

OutputParserOptions WithPlainIds(OutputParserOptions options) {
  options.call_id = [](int index) { return "id" + std::to_string(index); };
  return options;
}

// Pieces arrive in order, and every call is opened once, before its pieces and its end.
void CheckEventOrder(const std::vector<OutputEvent>& events) {
  int begun = 0;
  int ended = 0;
  for (const OutputEvent& event : events) {
    if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
      EXPECT_EQ(begin->index, begun++);
      EXPECT_EQ(begin->id, "id" + std::to_string(begin->index));
      EXPECT_FALSE(begin->name.empty());
    } else if (const auto* delta = std::get_if<ToolCallArgumentsDelta>(&event)) {
      EXPECT_EQ(delta->index, begun - 1);
      EXPECT_FALSE(delta->text.empty());
    } else if (const auto* end = std::get_if<ToolCallEnd>(&event)) {
      EXPECT_EQ(end->index, begun - 1);
      EXPECT_EQ(end->index, ended++);
    }
  }
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(std::holds_alternative<OutputFinish>(events.back()));
}

ParsedRun Finished(OutputParser* parser, std::vector<OutputEvent> events, OutputEnd end) {
  parser->Finish(end, &events);
  CheckEventOrder(events);
  CompletedOutput output = CollectOutput(events);
  for (const CompletedCall& call : output.tool_calls) {
    EXPECT_TRUE(ReadJson(call.arguments).is_object()) << call.arguments;
  }
  return {.output = std::move(output), .stats = parser->stats(), .events = std::move(events)};
}

}  // namespace

std::vector<std::int32_t> MergedIds(const std::string& text) { return SmallChatTokenizer().Encode(text, true); }

std::vector<std::int32_t> ByteIds(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const std::int32_t id : MergedIds(text)) {
    if (SmallChatTokenizer().IsAdded(id)) {
      ids.push_back(id);
      continue;
    }
    // The first 256 ids are the bytes in order.
    for (const char byte : SmallChatTokenizer().TokenBytes(id)) ids.push_back(static_cast<unsigned char>(byte));
  }
  return ids;
}

ParsedRun ParseIds(const std::vector<std::int32_t>& ids, OutputParserOptions options, OutputEnd end) {
  OutputParser parser(SmallChatTokenizer(), Tokens(), WithPlainIds(std::move(options)));
  std::vector<OutputEvent> events;
  for (const std::int32_t id : ids) parser.PushId(id, &events);
  return Finished(&parser, std::move(events), end);
}

ParsedRun ParseText(const std::vector<std::string>& chunks, OutputParserOptions options, OutputEnd end) {
  options.spelled_markers = SpelledMarkers::Set::kAll;
  OutputParser parser(SmallChatTokenizer(), Tokens(), WithPlainIds(std::move(options)));
  std::vector<OutputEvent> events;
  for (const std::string& chunk : chunks) parser.PushText(chunk, &events);
  return Finished(&parser, std::move(events), end);
}

std::string Summary(const CompletedOutput& output) {
  std::string out = output.reasoning + "|" + output.content + "|";
  for (std::size_t i = 0; i < output.tool_calls.size(); ++i) {
    out += (i > 0 ? " " : "") + output.tool_calls[i].name + "(" + output.tool_calls[i].arguments + ")";
  }
  return out + "|" + std::string(FinishReasonName(*output.finish_reason));
}

ParsedRun ParseEverySplit(const std::string& text, const OutputParserOptions& options, OutputEnd end) {
  const ParsedRun first = ParseIds(MergedIds(text), options, end);
  const std::string summary = Summary(first.output);
  const auto same = [&](const ParsedRun& run, const std::string& split) {
    EXPECT_EQ(Summary(run.output), summary) << split << " of " << text;
    EXPECT_EQ(run.stats.anomalies, first.stats.anomalies) << split << " of " << text;
  };
  same(ParseIds(ByteIds(text), options, end), "bytes as ids");
  same(ParseText({text}, options, end), "whole text");
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  same(ParseText(bytes, options, end), "bytes");
  for (std::size_t at = 1; at < text.size(); ++at) {
    same(ParseText({text.substr(0, at), text.substr(at)}, options, end), "cut at " + std::to_string(at));
  }
  return first;
}

}  // namespace lockstep
