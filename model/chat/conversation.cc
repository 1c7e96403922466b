#include "model/chat/conversation.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace lockstep {
namespace {

void JoinWithBlankLine(const std::string& text, std::string* out) {
  if (text.empty()) return;
  if (!out->empty()) *out += "\n\n";
  *out += text;
}

bool CarriesSections(const ChatMessage& message) {
  return !message.tools.empty() || message.response_schema.has_value();
}

// V4: no message but the first may be a system message.
std::vector<ChatMessage> WithOneSystemText(std::vector<ChatMessage> messages) {
  std::vector<ChatMessage> arranged;
  bool leading = true;
  for (ChatMessage& message : messages) {
    if (message.role != ChatRole::kSystem) {
      leading = false;
    } else if (leading && !arranged.empty() && !CarriesSections(arranged.back())) {
      JoinWithBlankLine(message.content, &arranged.back().content);
      arranged.back().tools = std::move(message.tools);
      arranged.back().response_schema = std::move(message.response_schema);
      continue;
    } else if (!leading && !CarriesSections(message)) {
      message.role = ChatRole::kUser;
    }
    arranged.push_back(std::move(message));
  }
  return arranged;
}

bool MergesInto(const ChatMessage& previous, const ChatMessage& message) {
  return previous.role == ChatRole::kUser && message.role == ChatRole::kUser && !previous.task;
}

void MergeUserText(ChatMessage message, ChatDialect dialect, ChatMessage* into) {
  if (IsV41(dialect)) {
    into->content += "\n\n" + message.content;
  } else {
    JoinWithBlankLine(message.content, &into->content);
  }
  into->task = message.task;
}

std::vector<ChatMessage> WithMergedNeighbours(std::vector<ChatMessage> messages, ChatDialect dialect) {
  std::vector<ChatMessage> merged;
  for (ChatMessage& message : messages) {
    if (!merged.empty() && MergesInto(merged.back(), message)) {
      MergeUserText(std::move(message), dialect, &merged.back());
      continue;
    }
    const bool second_reminder = IsV41(dialect) && !merged.empty() &&
                                 message.role == ChatRole::kLatestReminder &&
                                 merged.back().role == ChatRole::kLatestReminder;
    if (!second_reminder) merged.push_back(std::move(message));
  }
  return merged;
}

// Sorts the results of [begin, end); user texts between them keep their places, as do results without an id.
void SortResults(const std::map<std::string, std::size_t>& call_order, std::vector<ChatMessage>::iterator begin,
                 std::vector<ChatMessage>::iterator end) {
  std::vector<ChatMessage*> places;
  for (auto message = begin; message != end; ++message) {
    if (message->role == ChatRole::kTool && !message->tool_call_id.empty()) places.push_back(&*message);
  }
  std::vector<ChatMessage> results;
  for (ChatMessage* place : places) results.push_back(std::move(*place));
  const auto order = [&](const ChatMessage& result) {
    const auto call = call_order.find(result.tool_call_id);
    return call == call_order.end() ? 0 : call->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const ChatMessage& a, const ChatMessage& b) { return order(a) < order(b); });
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = std::move(results[i]);
}

bool IsUserOrTool(const ChatMessage& message) {
  return message.role == ChatRole::kUser || message.role == ChatRole::kTool;
}

void SortResultsByCall(std::vector<ChatMessage>* messages) {
  std::map<std::string, std::size_t> call_order;
  for (auto at = messages->begin(); at != messages->end();) {
    if (!IsUserOrTool(*at)) {
      if (!at->tool_calls.empty()) call_order.clear();
      for (std::size_t i = 0; i < at->tool_calls.size(); ++i) call_order[at->tool_calls[i].id] = i;
      ++at;
      continue;
    }
    const auto end = std::find_if_not(at, messages->end(), IsUserOrTool);
    SortResults(call_order, at, end);
    at = end;
  }
}

// The schema object that the prompt shows; nothing for plain text and for V4's JSON mode, which has words of
// its own.
std::optional<Json> ResponseSchema(const ResponseFormat& format, ChatDialect dialect) {
  if (format.kind == ResponseFormat::Kind::kJsonSchema) return format.schema;
  if (format.kind == ResponseFormat::Kind::kText || !IsV41(dialect)) return std::nullopt;
  Json object = Json::Object();
  object.members.push_back({"type", Json::String("json_object")});
  return object;
}

void AttachSections(const ChatRequest& request, ChatDialect dialect, std::vector<ChatMessage>* messages) {
  std::optional<Json> schema = ResponseSchema(request.response_format, dialect);
  const bool json_words = !IsV41(dialect) && request.response_format.kind == ResponseFormat::Kind::kJsonObject;
  if (!request.ToolsActive() && !schema && !json_words) return;
  if (messages->empty() || messages->front().role != ChatRole::kSystem) {
    messages->insert(messages->begin(), ChatMessage{.role = ChatRole::kSystem});
  }
  ChatMessage& host = messages->front();
  if (request.ToolsActive()) host.tools = request.tools;
  if (schema) host.response_schema = std::move(schema);
}

}  // namespace

std::vector<ChatMessage> ArrangeMessages(const ChatRequest& request, ChatDialect dialect) {
  std::vector<ChatMessage> messages = request.messages;
  if (!IsV41(dialect)) messages = WithOneSystemText(std::move(messages));
  AttachSections(request, dialect, &messages);
  messages = WithMergedNeighbours(std::move(messages), dialect);
  SortResultsByCall(&messages);
  return messages;
}

bool IsUserSide(const std::vector<ChatMessage>& messages, std::size_t index) {
  const ChatRole role = messages[index].role;
  return role == ChatRole::kUser || role == ChatRole::kTool || role == ChatRole::kDeveloper ||
         (role == ChatRole::kSystem && index > 0);
}

std::ptrdiff_t LastUserSide(const std::vector<ChatMessage>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (IsUserSide(messages, i)) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}

}  // namespace lockstep
