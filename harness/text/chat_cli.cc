// Runs the chat encoder and the output parser for encoder_diff.py and parser_diff.py. One JSON object a line on
// stdin, one a line on stdout:
//   {"dialect": "v4.1", "history": "auto", "request": {...}}
//     -> {"text": ..., "controls": [[begin, end], ...], "ids": [...]}, byte offsets; ids if a tokenizer is
//     given
//   {"chunks": ["...", ...], "thinking": true}      (needs a tokenizer; spelled control tokens count)
//     -> {"reasoning": ..., "content": ..., "calls": [[name, arguments], ...], "finish_reason": ...}
//   anything that is refused -> {"error": ...}
// The one optional argument is a tokenizer.json.
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "model/chat/encoder.h"
#include "model/chat/json.h"
#include "model/chat/output_parser.h"

namespace lockstep {
namespace {

ReasoningHistory ParseHistory(const std::string& name) {
  if (name == "keep") return ReasoningHistory::kKeep;
  if (name == "drop") return ReasoningHistory::kDrop;
  if (name == "client") return ReasoningHistory::kClient;
  if (name == "auto") return ReasoningHistory::kAuto;
  throw InputError("history: expected auto, keep, drop or client, got \"" + name + "\"");
}

const Json& Field(const Json& job, std::string_view name) {
  const Json* value = job.Find(name);
  if (value == nullptr) throw InputError(std::string(name) + ": expected in a job");
  return *value;
}

Json Number(std::size_t value) { return {.kind = Json::Kind::kNumber, .text = std::to_string(value)}; }

Json ControlRanges(const Prompt& prompt) {
  Json ranges{.kind = Json::Kind::kArray};
  for (const PromptSegment& segment : prompt.segments()) {
    if (!segment.control) continue;
    ranges.items.push_back({.kind = Json::Kind::kArray, .items = {Number(segment.begin), Number(segment.end)}});
  }
  return ranges;
}

Json Rendered(const Json& job, const std::optional<Tokenizer>& tokenizer) {
  const ChatDialect dialect = ParseChatDialect(Field(job, "dialect").text, "dialect");
  const EncodeOptions options{.reasoning_history = ParseHistory(Field(job, "history").text)};
  const Prompt prompt = RenderChat(ParseChatRequest(Field(job, "request")), dialect, options);
  Json out = Json::Object();
  out.members.push_back({"text", Json::String(prompt.text())});
  out.members.push_back({"controls", ControlRanges(prompt)});
  if (!tokenizer) return out;
  Json ids{.kind = Json::Kind::kArray};
  for (const std::int32_t id : EncodePrompt(prompt, *tokenizer).ids) {
    ids.items.push_back(Number(static_cast<std::size_t>(id)));
  }
  out.members.push_back({"ids", std::move(ids)});
  return out;
}

Json Parsed(const Json& job, const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer) throw InputError("chunks: expected a tokenizer as argument");
  OutputParser parser(
      *tokenizer, ControlTokens::Of(*tokenizer, ChatDialect::kV41),
      {.start = Field(job, "thinking").boolean ? OutputStart::kReasoning : OutputStart::kContent,
       .spelled_markers = SpelledMarkers::Set::kAll});
  std::vector<OutputEvent> events;
  for (const Json& chunk : Field(job, "chunks").items) parser.PushText(chunk.text, &events);
  parser.Finish(OutputEnd::kEndToken, &events);
  const CompletedOutput output = CollectOutput(events);
  Json calls{.kind = Json::Kind::kArray};
  for (const CompletedCall& call : output.tool_calls) {
    calls.items.push_back(
        {.kind = Json::Kind::kArray, .items = {Json::String(call.name), Json::String(call.arguments)}});
  }
  Json out = Json::Object();
  out.members.push_back({"reasoning", Json::String(output.reasoning)});
  out.members.push_back({"content", Json::String(output.content)});
  out.members.push_back({"calls", std::move(calls)});
  out.members.push_back({"finish_reason", Json::String(std::string(FinishReasonName(*output.finish_reason)))});
  return out;
}

Json Answer(const std::string& line, const std::optional<Tokenizer>& tokenizer) {
  try {
    const Json job = ReadJson(line);
    return job.Find("chunks") != nullptr ? Parsed(job, tokenizer) : Rendered(job, tokenizer);
  } catch (const InputError& error) {
    Json out = Json::Object();
    out.members.push_back({"error", Json::String(error.what())});
    return out;
  }
}

int Main(int argc, char** argv) {
  std::optional<Tokenizer> tokenizer;
  if (argc > 1) tokenizer = Tokenizer::FromFile(argv[1]);
  std::string line;
  while (std::getline(std::cin, line)) std::cout << SpacedJson(Answer(line, tokenizer)) << '\n';
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
