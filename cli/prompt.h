// The prompt of a command: plain text, token ids, or a chat request.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/chat/prompt.h"
#include "model/text/tokenizer.h"

namespace lockstep::cli {

// Exactly one of them is given.
struct PromptFlags {
  std::optional<std::string> prompt;
  std::string ids;
  std::string chat;
};

void AddPromptFlags(CLI::App& command, PromptFlags* flags);

// Throws InputError unless exactly one is given.
void CheckPromptFlags(const PromptFlags& flags);

// The chat request in the file at `path`, encoded in the dialect of the model directory `model`. Throws
// InputError naming the file and the request's field.
EncodedPrompt EncodeChatFile(const std::string& path, const std::string& model, const Tokenizer& tokenizer);

// The ids, at least one. Plain text gets one BOS in front unless it starts with it. `tokenizer` null: the model
// has none, and only ids can be given. Throws InputError naming the flag, the file or the request's field.
std::vector<std::int32_t> PromptIds(const PromptFlags& flags, const std::string& model,
                                    const Tokenizer* tokenizer);

}  // namespace lockstep::cli
