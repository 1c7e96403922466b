// An OpenAI chat request as the prompt encoder and the output parser need it. Sampling, streaming and transport
// fields stay in the JSON body for the server to read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/dialect.h"
#include "model/chat/json.h"

namespace lockstep {

struct ChatTool {
  std::string name;
  std::string description;           // "" if the client gave none
  Json parameters = Json::Object();  // JSON Schema, in the client's key order
};

struct ChatToolCall {
  std::string id;  // "" if the client gave none
  std::string name;
  Json arguments = Json::Object();  // always an object
};

enum class ChatRole { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

// Quick-instruction tasks of a user message: its token takes the place of the assistant header.
enum class ChatTask { kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;                   // text parts joined by blank lines
  std::optional<std::string> reasoning;  // assistant; absent if the client sent none
  std::vector<ChatToolCall> tool_calls;  // assistant
  bool prefix = false;                   // assistant, last message: continued instead of answered
  std::string tool_call_id;              // tool; "" if the client gave none
  std::optional<ChatTask> task;          // user
  std::vector<ChatTool> tools;           // system and developer: shown after the content
  std::optional<Json> response_schema;   // system and developer: shown after the tools
};

enum class ToolChoice { kAuto, kNone, kRequired };

struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  Json schema;  // with kJsonSchema
};

struct ChatRequest {
  std::vector<ChatMessage>
      messages;  // system messages without text are left out; every tool message answers a call before it
  std::vector<ChatTool> tools;  // with a named tool_choice that tool alone
  ToolChoice tool_choice = ToolChoice::kAuto;
  bool parallel_tool_calls = true;
  bool thinking = true;
  ReasoningEffort effort;  // meaningful while thinking
  ResponseFormat response_format;
  bool add_generation_prompt = true;

  // Tools are in the prompt and calls are wanted in the output.
  bool ToolsActive() const { return !tools.empty() && tool_choice != ToolChoice::kNone; }
};

struct ChatParseOptions {
  // Image parts become "[image omitted]" instead of an error.
  bool omit_images = false;
  // As the checkpoint's own encoder: a developer message is a user turn that may carry tools. Otherwise it
  // means "system".
  bool developer_is_user_turn = false;
};

// Validates a chat request body. Throws RequestError naming the field, with the message index where there is
// one
// ("messages[3].role: ..."): malformed JSON, wrong types, unknown roles and enum values, tool results without a
// call, arguments that are no JSON object, images. Unknown fields are ignored, null counts as absent.
ChatRequest ParseChatRequest(std::string_view body, const ChatParseOptions& options = {});
ChatRequest ParseChatRequest(const Json& body, const ChatParseOptions& options = {});

}  // namespace lockstep
