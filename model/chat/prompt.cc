#include "model/chat/prompt.h"

#include "model/chat/control_tokens.h"

namespace lockstep {
namespace {

struct Mark {
  std::size_t at = std::string_view::npos;
  std::string_view text;
};

// All grounding marks begin alike, so only places where that beginning stands are compared.
Mark FindGroundingMark(std::string_view text, std::size_t from) {
  static constexpr std::string_view kBeginning = "<｜";
  for (std::size_t at = text.find(kBeginning, from); at != std::string_view::npos;
       at = text.find(kBeginning, at + 1)) {
    for (const std::string_view mark : kGroundingTexts) {
      if (text.substr(at, mark.size()) == mark) return {at, mark};
    }
  }
  return {};
}

}  // namespace

void Prompt::Text(std::string_view text) {
  if (text.empty()) return;
  const std::size_t begin = text_.size();
  text_ += text;
  if (!segments_.empty() && !segments_.back().control) {
    segments_.back().end = text_.size();
  } else {
    segments_.push_back({begin, text_.size(), false});
  }
}

void Prompt::Control(std::string_view token) {
  const std::size_t begin = text_.size();
  text_ += token;
  segments_.push_back({begin, text_.size(), true});
}

void Prompt::AssistantText(std::string_view text) {
  std::size_t done = 0;
  for (Mark mark = FindGroundingMark(text, 0); mark.at != std::string_view::npos;
       mark = FindGroundingMark(text, done)) {
    Text(text.substr(done, mark.at - done));
    Control(mark.text);
    done = mark.at + mark.text.size();
  }
  Text(text.substr(done));
}

EncodedPrompt EncodePrompt(const Prompt& prompt, const Tokenizer& tokenizer) {
  const std::string_view text = prompt.text();
  std::vector<TextSegment> segments;
  segments.reserve(prompt.segments().size());
  for (const PromptSegment& segment : prompt.segments()) {
    segments.push_back(
        {.text = text.substr(segment.begin, segment.end - segment.begin), .parse_special = segment.control});
  }
  return {.ids = tokenizer.Encode(segments), .text = prompt.text(), .output_start = prompt.output_start};
}

Prompt FimPrompt(std::string_view prefix, std::string_view suffix) {
  Prompt prompt;
  prompt.Control(kBosText);
  prompt.Control(kFimBeginText);
  prompt.Text(prefix);
  prompt.Control(kFimHoleText);
  prompt.Text(suffix);
  prompt.Control(kFimEndText);
  return prompt;
}

EncodedPrompt EncodeRawPrompt(std::string_view text, const Tokenizer& tokenizer) {
  std::string whole = text.starts_with(kBosText) ? std::string() : std::string(kBosText);
  whole += text;
  std::vector<std::int32_t> ids = tokenizer.Encode(whole, /*parse_special=*/true);
  return {.ids = std::move(ids), .text = std::move(whole), .output_start = OutputStart::kContent};
}

}  // namespace lockstep
