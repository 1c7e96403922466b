// A prompt as text in which control tokens are marked, so that the same characters inside somebody's message
// stay text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/tokenizer.h"

namespace lockstep {

// Where the model's output begins.
enum class OutputStart {
  kReasoning,           // after a new <think>
  kReasoningContinued,  // inside the reasoning of a continued message
  kContent,             // after a new </think> or a task token
  kContentContinued,    // inside the text of a continued message
  kToolBlock,           // inside a tool-call block that the prompt opened
};

// Bytes [begin, end) of a prompt. A control segment is the spelling of exactly one control token.
struct PromptSegment {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool control = false;
};

class Prompt {
 public:
  // Ordinary text; joins the text before it.
  void Text(std::string_view text);
  void Control(std::string_view token);
  // Assistant text: grounding marks in it are control tokens.
  void AssistantText(std::string_view text);

  const std::string& text() const { return text_; }
  const std::vector<PromptSegment>& segments() const { return segments_; }

  OutputStart output_start = OutputStart::kContent;

 private:
  std::string text_;
  std::vector<PromptSegment> segments_;
};

struct EncodedPrompt {
  std::vector<std::int32_t> ids;
  std::string text;
  OutputStart output_start = OutputStart::kContent;
};

// Control segments become their ids, text segments plain BPE without added tokens.
EncodedPrompt EncodePrompt(const Prompt& prompt, const Tokenizer& tokenizer);

// Fill in the middle: the model writes what stands between prefix and suffix.
Prompt FimPrompt(std::string_view prefix, std::string_view suffix);

// A completion prompt as given, control tokens in it included; the beginning-of-sentence token is added unless
// the text has it.
EncodedPrompt EncodeRawPrompt(std::string_view text, const Tokenizer& tokenizer);

}  // namespace lockstep
