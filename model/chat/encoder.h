// From a chat request to the prompt of a dialect (docs/chat.md).
#pragma once

#include "model/chat/dialect.h"
#include "model/chat/prompt.h"
#include "model/chat/request.h"

namespace lockstep {

// Which earlier assistant turns of a thinking conversation show their reasoning. A continued message always
// does.
enum class ReasoningHistory {
  kAuto,    // all when tools are in the prompt, else those after the last user turn
  kKeep,    // all; where the client sent none it is empty
  kDrop,    // none
  kClient,  // those for which the client sent reasoning
};

struct EncodeOptions {
  ReasoningHistory reasoning_history = ReasoningHistory::kAuto;
};

// The prompt of the request. Throws RequestError for an effort that the dialect cannot say.
Prompt RenderChat(const ChatRequest& request, ChatDialect dialect, const EncodeOptions& options = {});

// RenderChat and EncodePrompt.
EncodedPrompt EncodeChat(const ChatRequest& request, ChatDialect dialect, const Tokenizer& tokenizer,
                         const EncodeOptions& options = {});

// What the model samples when it gives this answer, its end token included: reasoning and </think> if the
// prompt left it thinking, content, tool calls.
Prompt RenderAnswer(const ChatMessage& answer, ChatDialect dialect, bool thinking);

}  // namespace lockstep
