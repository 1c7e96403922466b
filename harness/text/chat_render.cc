// Renders chat requests for harness/text/encoder_diff.py. One JSON object a line on stdin:
//   {"dialect": "v4.1", "history": "auto", "request": {...}}
// and one a line on stdout: {"text": ..., "controls": [[begin, end], ...], "ids": [...]} with byte offsets, or
// {"error": ...}. The one optional argument is a tokenizer.json; without it there are no ids.
#include <iostream>
#include <optional>
#include <string>

#include "model/chat/encoder.h"
#include "model/chat/json.h"

namespace lockstep {
namespace {

ReasoningHistory ParseHistory(const std::string& name) {
  if (name == "keep") return ReasoningHistory::kKeep;
  if (name == "drop") return ReasoningHistory::kDrop;
  if (name == "client") return ReasoningHistory::kClient;
  if (name == "auto") return ReasoningHistory::kAuto;
  throw InputError("history: expected auto, keep, drop or client, got \"" + name + "\"");
}

std::string Rendered(const std::string& line, const std::optional<Tokenizer>& tokenizer) {
  const Json job = ReadJson(line);
  const ChatDialect dialect = ParseChatDialect(job.Find("dialect")->text, "dialect");
  const EncodeOptions options{.reasoning_history = ParseHistory(job.Find("history")->text)};
  const Prompt prompt = RenderChat(ParseChatRequest(*job.Find("request")), dialect, options);
  std::string out = "{\"text\": ";
  AppendJsonString(prompt.text(), &out);
  out += ", \"controls\": [";
  std::string separator;
  for (const PromptSegment& segment : prompt.segments()) {
    if (!segment.control) continue;
    out += separator + "[" + std::to_string(segment.begin) + ", " + std::to_string(segment.end) + "]";
    separator = ", ";
  }
  out += "]";
  if (tokenizer) {
    out += ", \"ids\": [";
    separator.clear();
    for (const std::int32_t id : EncodePrompt(prompt, *tokenizer).ids) {
      out += separator + std::to_string(id);
      separator = ", ";
    }
    out += "]";
  }
  return out + "}";
}

int Main(int argc, char** argv) {
  std::optional<Tokenizer> tokenizer;
  if (argc > 1) tokenizer = Tokenizer::FromFile(argv[1]);
  std::string line;
  while (std::getline(std::cin, line)) {
    try {
      std::cout << Rendered(line, tokenizer) << '\n';
    } catch (const InputError& error) {
      std::string out = "{\"error\": ";
      AppendJsonString(error.what(), &out);
      std::cout << out << "}\n";
    }
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
