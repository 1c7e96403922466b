#include "model/chat/request_messages.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kImageOmitted = "[image omitted]";
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

struct RoleName {
  std::string_view name;
  ChatRole role;
};

constexpr RoleName kRoles[] = {
    {"system", ChatRole::kSystem}, {"developer", ChatRole::kDeveloper},
    {"user", ChatRole::kUser},     {"assistant", ChatRole::kAssistant},
    {"tool", ChatRole::kTool},     {"latest_reminder", ChatRole::kLatestReminder},
};

struct TaskName {
  std::string_view name;
  ChatTask task;
};

constexpr TaskName kTasks[] = {
    {"action", ChatTask::kAction}, {"query", ChatTask::kQuery}, {"authority", ChatTask::kAuthority},
    {"domain", ChatTask::kDomain}, {"title", ChatTask::kTitle}, {"read_url", ChatTask::kReadUrl},
};

ChatRole ReadRole(const JsonField& field, const ChatParseOptions& options) {
  const std::string& name = field.AsString();
  for (const RoleName& entry : kRoles) {
    if (entry.name != name) continue;
    if (entry.role == ChatRole::kDeveloper && !options.developer_is_user_turn) return ChatRole::kSystem;
    return entry.role;
  }
  field.FailExpected("system, developer, user, assistant, tool or latest_reminder");
}

std::optional<ChatTask> ReadTask(const JsonField& field) {
  if (!field.present()) return std::nullopt;
  const std::string& name = field.AsString();
  for (const TaskName& entry : kTasks) {
    if (entry.name == name) return entry.task;
  }
  field.FailExpected("action, query, authority, domain, title or read_url");
}

// Names stand unescaped inside the tags of the prompt, so they must not be able to end one.
std::string ReadFunctionName(const JsonField& field) {
  const std::string& name = field.AsString();
  const bool clean = std::none_of(name.begin(), name.end(), [](char c) {
    return c == '"' || c == '<' || c == '>' || static_cast<unsigned char>(c) < 0x20;
  });
  if (name.empty() || !clean)
    field.FailExpected("a function name without quotes, angle brackets and control characters");
  return name;
}

bool IsImagePart(std::string_view type) {
  return type == "image_url" || type == "image" || type == "input_image";
}

std::string ReadPart(const JsonField& part, ChatRole role, const ChatParseOptions& options) {
  if (part.value().is_string()) return part.value().text;
  part.AsObject();
  const std::string type = part["type"].present() ? part["type"].AsString() : "text";
  if (type == "text" || type == "input_text" || type == "output_text") return part["text"].AsString();
  if (type == "refusal") return part["refusal"].AsString();
  if (IsImagePart(type)) {
    if (options.omit_images) return std::string(kImageOmitted);
    if (role != ChatRole::kTool) part.Fail("images are not supported, expected text parts only");
  }
  return "[Unsupported " + type + "]";
}

std::string ReadContent(const JsonField& field, ChatRole role, const ChatParseOptions& options) {
  if (!field.present()) return {};
  if (field.value().is_string()) return field.value().text;
  if (!field.value().is_array()) field.FailExpected("a string or an array of content parts");
  std::string content;
  bool first = true;
  for (const JsonField& part : field.Elements()) {
    if (!first) content += "\n\n";
    content += ReadPart(part, role, options);
    first = false;
  }
  return content;
}

// Some clients open the system prompt with a header that changes on every request and would cost the whole
// prefix cache.
std::string WithoutBillingHeader(std::string content) {
  if (!content.starts_with(kBillingHeader)) return content;
  std::size_t start = std::min(content.find('\n'), content.find("You are"));
  if (start == std::string::npos) return {};
  start = content.find_first_not_of(" \t\r\n\f\v", start);
  return start == std::string::npos ? std::string() : content.substr(start);
}

// Arguments come as JSON text, as a bare object, or encoded twice; what is rendered is always the object
// itself, because a model that sees a parameter named "arguments" in its history imitates it.
Json ReadArguments(const JsonField& field) {
  if (!field.present()) return Json::Object();
  Json value = field.value();
  for (int level = 0; level < 2 && value.is_string(); ++level) {
    if (value.text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::Object();
    value = ReadJson(value.text, {.root = field.path()});
  }
  if (value.kind == Json::Kind::kNull) return Json::Object();
  if (!value.is_object()) field.FailExpected("a JSON object, as text or as itself");
  return value;
}

ChatToolCall ReadToolCall(const JsonField& field) {
  field.AsObject();
  const JsonField type = field["type"];
  if (type.present() && type.AsString() != "function") type.FailExpected("\"function\"");
  const JsonField function = field["function"];
  function.AsObject();
  return {.id = field["id"].StringOr(""),
          .name = ReadFunctionName(function["name"]),
          .arguments = ReadArguments(function["arguments"])};
}

std::vector<ChatToolCall> ReadToolCalls(const JsonField& field) {
  std::vector<ChatToolCall> calls;
  std::set<std::string> ids;
  for (const JsonField& element : field.Elements()) {
    calls.push_back(ReadToolCall(element));
    const std::string& id = calls.back().id;
    if (!id.empty() && !ids.insert(id).second) element["id"].FailExpected("an id of its own for each call");
  }
  return calls;
}

void ReadAssistantFields(const JsonField& field, ChatMessage* message) {
  for (const JsonField& reasoning : {field["reasoning"], field["reasoning_content"]}) {
    if (reasoning.present()) message->reasoning = reasoning.AsString();
  }
  message->tool_calls = ReadToolCalls(field["tool_calls"]);
  message->prefix = field["prefix"].BoolOr(false);
  if (!field["content"].present() && !field["tool_calls"].present() && !message->reasoning) {
    field["content"].FailExpected("content, tool_calls or reasoning_content in an assistant message");
  }
  if (message->prefix && !message->tool_calls.empty())
    field["prefix"].Fail("a message with tool_calls cannot be continued");
}

void RequireContent(const JsonField& field) {
  if (!field["content"].present()) field["content"].FailExpected("a string or an array of content parts");
}

ChatMessage ReadMessage(const JsonField& field, const ChatParseOptions& options) {
  field.AsObject();
  ChatMessage message;
  message.role = ReadRole(field["role"], options);
  message.content = ReadContent(field["content"], message.role, options);
  if (message.role == ChatRole::kAssistant) {
    ReadAssistantFields(field, &message);
    return message;
  }
  RequireContent(field);
  if (field["prefix"].BoolOr(false)) field["prefix"].Fail("only an assistant message can be continued");
  switch (message.role) {
    case ChatRole::kSystem:
      message.content = WithoutBillingHeader(std::move(message.content));
      [[fallthrough]];
    case ChatRole::kDeveloper:
      message.tools = ReadTools(field["tools"]);
      if (field["response_format"].present()) message.response_schema = field["response_format"].AsObject();
      break;
    case ChatRole::kUser:
      message.task = ReadTask(field["task"]);
      break;
    case ChatRole::kTool:
      message.tool_call_id = field["tool_call_id"].StringOr("");
      break;
    default:
      break;
  }
  return message;
}

// The calls of the last assistant message that still wait for a result.
class PendingCalls {
 public:
  void Open(const std::vector<ChatToolCall>& calls) {
    waiting_.clear();
    answered_.clear();
    any_ = !calls.empty();
    for (const ChatToolCall& call : calls) waiting_.insert(call.id);
  }

  void Answer(const JsonField& message, const std::string& id) {
    if (!any_)
      message["role"].Fail("a tool result without a call: the assistant message before it has no tool_calls");
    auto call = waiting_.find(id);
    // Without ids on one of the two sides results answer calls in order.
    if (call == waiting_.end()) call = id.empty() ? waiting_.begin() : waiting_.find("");
    if (call == waiting_.end()) {
      const JsonField field = message["tool_call_id"];
      if (id.empty() || answered_.contains(id)) field.Fail("a second result for one tool call");
      field.FailExpected("the id of a tool call of the assistant message before it");
    }
    waiting_.erase(call);
    answered_.insert(id);
  }

 private:
  bool any_ = false;
  std::multiset<std::string> waiting_;
  std::set<std::string> answered_;
};

bool IsEmptySystem(const ChatMessage& message) {
  return message.role == ChatRole::kSystem && message.content.empty() && message.tools.empty() &&
         !message.response_schema;
}

}  // namespace

std::vector<ChatMessage> ReadMessages(const JsonField& field, const ChatParseOptions& options) {
  const std::vector<JsonField> elements = field.Elements();
  if (elements.empty()) field.FailExpected("an array with at least one message");
  std::vector<ChatMessage> messages;
  PendingCalls pending;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    ChatMessage message = ReadMessage(elements[i], options);
    if (message.role == ChatRole::kAssistant) pending.Open(message.tool_calls);
    if (message.role == ChatRole::kTool) pending.Answer(elements[i], message.tool_call_id);
    if (message.prefix && i + 1 < elements.size())
      elements[i]["prefix"].Fail("only the last message can be continued");
    if (!IsEmptySystem(message)) messages.push_back(std::move(message));
  }
  return messages;
}

std::vector<ChatTool> ReadTools(const JsonField& field) {
  std::vector<ChatTool> tools;
  std::set<std::string> names;
  for (const JsonField& element : field.Elements()) {
    element.AsObject();
    const JsonField type = element["type"];
    if (type.present() && type.AsString() != "function") type.FailExpected("\"function\"");
    const JsonField function = element["function"];
    function.AsObject();
    ChatTool tool{.name = ReadFunctionName(function["name"]),
                  .description = function["description"].StringOr("")};
    if (function["parameters"].present()) tool.parameters = function["parameters"].AsObject();
    if (!names.insert(tool.name).second) function["name"].FailExpected("a name of its own for each tool");
    tools.push_back(std::move(tool));
  }
  return tools;
}

}  // namespace lockstep
