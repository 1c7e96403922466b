// Tools and tool calls as the prompt writes them.
#pragma once

#include <span>

#include "model/chat/dialect.h"
#include "model/chat/prompt.h"
#include "model/chat/request.h"

namespace lockstep {

// The "## Tools" section: how to call, then one schema a line. Ends with a newline.
void AppendToolSection(std::span<const ChatTool> tools, ChatDialect dialect, Prompt* prompt);

// "\n\n" and the block of calls, up to the bracket of its closing tag.
void AppendToolCalls(std::span<const ChatToolCall> calls, ChatDialect dialect, Prompt* prompt);

// "\n\n" and the opening tag of a block with its newline: the model must go on with a call.
void AppendToolBlockOpener(ChatDialect dialect, Prompt* prompt);

}  // namespace lockstep
