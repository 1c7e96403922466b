// Whether a request thinks and how hard, from the many fields that clients use for it.
#pragma once

#include "model/chat/dialect.h"
#include "model/chat/json_field.h"

namespace lockstep {

struct ThinkingChoice {
  bool on = true;
  ReasoningEffort effort;  // high unless the request says otherwise
};

// Strongest first: thinking; reasoning_effort, reasoning.effort, output_config.effort; chat_template_kwargs and
// enable_thinking. Nothing given: on, high. Throws RequestError naming the field of an unknown word or a wrong
// type.
ThinkingChoice ReadThinking(const JsonField& body);

}  // namespace lockstep
