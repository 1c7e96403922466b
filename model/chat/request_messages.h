// The "messages" of a chat request.
#pragma once

#include <vector>

#include "model/chat/json_field.h"
#include "model/chat/request.h"

namespace lockstep {

// Reads and validates all messages; system messages without text, tools and schema are left out. Throws
// RequestError.
std::vector<ChatMessage> ReadMessages(const JsonField& messages, const ChatParseOptions& options);

// Reads a list of function tools. Throws RequestError; names must be unique.
std::vector<ChatTool> ReadTools(const JsonField& tools);

}  // namespace lockstep
