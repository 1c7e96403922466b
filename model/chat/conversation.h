// A request's messages in the shape that the prompt has.
#pragma once

#include <vector>

#include "model/chat/dialect.h"
#include "model/chat/request.h"

namespace lockstep {

// Messages ready to be written one after the other:
// * tools and response format stand in the first message, a system message (made if needed);
// * V4 has one system text: leading system messages are joined, later ones become user text, which keeps the
// prompt's head stable;
// * neighbouring user messages are one; a reminder directly after another is left out (V4.1);
// * tool results stand in the order of their calls.
std::vector<ChatMessage> ArrangeMessages(const ChatRequest& request, ChatDialect dialect);

// Whether the message belongs to a user turn: user text, a tool result, or a V4.1 system message inside the
// conversation.
bool IsUserSide(const std::vector<ChatMessage>& messages, std::size_t index);

// Index of the last user-side message, or -1.
std::ptrdiff_t LastUserSide(const std::vector<ChatMessage>& messages);

}  // namespace lockstep
