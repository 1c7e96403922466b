#include "model/chat/encoder.h"

#include <vector>

#include "model/chat/control_tokens.h"
#include "model/chat/conversation.h"
#include "model/chat/tool_markup.h"

namespace lockstep {
namespace {

constexpr std::string_view kResponseSchemaText =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
constexpr std::string_view kV4JsonObjectText =
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY.";

class Renderer {
 public:
  Renderer(const ChatRequest& request, ChatDialect dialect, const EncodeOptions& options)
      : request_(request),
        dialect_(dialect),
        history_(options.reasoning_history),
        messages_(ArrangeMessages(request, dialect)),
        last_user_side_(LastUserSide(messages_)) {
    for (const ChatMessage& message : messages_) tools_shown_ = tools_shown_ || !message.tools.empty();
    DropOldDeveloperMessages();
  }

  Prompt Render() {
    prompt_.Control(kBosText);
    if (!IsV41(dialect_)) EffortLine();
    for (std::size_t i = 0; i < messages_.size(); ++i) Message(i);
    Ending();
    return std::move(prompt_);
  }

 private:
  bool KeepsAllReasoning() const {
    return history_ == ReasoningHistory::kKeep || history_ == ReasoningHistory::kClient ||
           (history_ == ReasoningHistory::kAuto && tools_shown_);
  }

  // The checkpoint's own encoder forgets old developer messages together with old reasoning.
  void DropOldDeveloperMessages() {
    if (!request_.thinking || KeepsAllReasoning()) return;
    std::vector<ChatMessage> kept;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const bool old = static_cast<std::ptrdiff_t>(i) < last_user_side_;
      if (messages_[i].role != ChatRole::kDeveloper || !old) kept.push_back(std::move(messages_[i]));
    }
    messages_ = std::move(kept);
    last_user_side_ = LastUserSide(messages_);
  }

  bool ShowsReasoning(std::size_t index) const {
    const ChatMessage& message = messages_[index];
    // V4.1 needs a turn before: the message that opens a prompt carries the effort line instead.
    if (!request_.thinking || (IsV41(dialect_) && index == 0)) return false;
    if (message.prefix) return true;
    switch (history_) {
      case ReasoningHistory::kAuto:
        return tools_shown_ || static_cast<std::ptrdiff_t>(index) > last_user_side_;
      case ReasoningHistory::kKeep:
        return true;
      case ReasoningHistory::kDrop:
        return false;
      case ReasoningHistory::kClient:
        return message.reasoning.has_value();
    }
    return false;
  }

  void EffortLine() {
    if (request_.thinking) prompt_.Text(EffortText(dialect_, request_.effort));
  }

  void Message(std::size_t index) {
    const ChatMessage& message = messages_[index];
    if (index == 0 && IsV41(dialect_)) {
      if (request_.thinking || message.role == ChatRole::kSystem) prompt_.Control(kSystemText);
      EffortLine();
    }
    switch (message.role) {
      case ChatRole::kSystem:
        if (index > 0 && IsV41(dialect_)) prompt_.Control(kSystemText);
        prompt_.Text(message.content);
        Sections(index);
        break;
      case ChatRole::kDeveloper:
        prompt_.Control(kUserText);
        prompt_.Text(message.content);
        Sections(index);
        break;
      case ChatRole::kUser:
        UserSideStart(index);
        prompt_.Text(message.content);
        Task(index);
        break;
      case ChatRole::kTool:
        UserSideStart(index);
        prompt_.Text("<tool_result>");
        prompt_.Text(message.content);
        prompt_.Text("</tool_result>");
        break;
      case ChatRole::kLatestReminder:
        prompt_.Control(kLatestReminderText);
        prompt_.Text(message.content);
        break;
      case ChatRole::kAssistant:
        Assistant(index);
        break;
    }
  }

  void Sections(std::size_t index) {
    const ChatMessage& message = messages_[index];
    if (!message.tools.empty()) {
      prompt_.Text("\n\n");
      AppendToolSection(message.tools, dialect_, &prompt_);
    }
    if (message.response_schema) {
      prompt_.Text("\n\n");
      prompt_.Text(kResponseSchemaText);
      prompt_.Text(SpacedJson(*message.response_schema));
    }
    if (index == 0 && !IsV41(dialect_) && request_.response_format.kind == ResponseFormat::Kind::kJsonObject) {
      prompt_.Text("\n\n");
      prompt_.Text(kV4JsonObjectText);
    }
  }

  // One header for a run of user texts and tool results, a blank line between its parts.
  void UserSideStart(std::size_t index) {
    const bool goes_on =
        index > 0 && !messages_[index - 1].task &&
        (messages_[index - 1].role == ChatRole::kUser || messages_[index - 1].role == ChatRole::kTool);
    if (goes_on) {
      prompt_.Text("\n\n");
    } else {
      prompt_.Control(kUserText);
    }
  }

  // The task's token stands where the assistant header would; only "action" has a header too.
  void Task(std::size_t index) {
    const std::optional<ChatTask> task = messages_[index].task;
    if (!task) return;
    if (index + 1 < messages_.size() && messages_[index + 1].role != ChatRole::kAssistant &&
        messages_[index + 1].role != ChatRole::kLatestReminder) {
      return;
    }
    if (*task == ChatTask::kAction) {
      prompt_.Control(kAssistantText);
      prompt_.Control(request_.thinking ? kThinkText : kThinkEndText);
    }
    prompt_.Control(TaskText(*task));
  }

  void Assistant(std::size_t index) {
    const ChatMessage& message = messages_[index];
    const bool answers_task = index > 0 && messages_[index - 1].task.has_value();
    if (!answers_task) AssistantHeader(index);
    prompt_.AssistantText(message.content);
    if (!message.tool_calls.empty()) AppendToolCalls(message.tool_calls, dialect_, &prompt_);
    if (!message.prefix) prompt_.Control(kEosText);
  }

  void AssistantHeader(std::size_t index) {
    const ChatMessage& message = messages_[index];
    prompt_.Control(kAssistantText);
    if (!ShowsReasoning(index)) return prompt_.Control(kThinkEndText);
    prompt_.Control(kThinkText);
    prompt_.AssistantText(message.reasoning.value_or(""));
    if (!message.prefix || !message.content.empty()) prompt_.Control(kThinkEndText);
  }

  void Ending() {
    const bool empty = messages_.empty();
    if (!empty && messages_.back().prefix) return ContinuedEnding();
    prompt_.output_start = OutputStart::kContent;
    if (!request_.add_generation_prompt || (!empty && messages_.back().task)) return;
    prompt_.Control(kAssistantText);
    prompt_.Control(request_.thinking ? kThinkText : kThinkEndText);
    if (request_.thinking) {
      prompt_.output_start = OutputStart::kReasoning;
    } else if (request_.ToolsActive() && request_.tool_choice == ToolChoice::kRequired) {
      AppendToolBlockOpener(dialect_, &prompt_);
      prompt_.output_start = OutputStart::kToolBlock;
    }
  }

  void ContinuedEnding() {
    const ChatMessage& message = messages_.back();
    const bool reasoning_open = ShowsReasoning(messages_.size() - 1) && message.content.empty();
    if (!reasoning_open) {
      prompt_.output_start = message.content.empty() ? OutputStart::kContent : OutputStart::kContentContinued;
    } else {
      prompt_.output_start =
          message.reasoning.value_or("").empty() ? OutputStart::kReasoning : OutputStart::kReasoningContinued;
    }
  }

  const ChatRequest& request_;
  const ChatDialect dialect_;
  const ReasoningHistory history_;
  std::vector<ChatMessage> messages_;
  std::ptrdiff_t last_user_side_;
  bool tools_shown_ = false;
  Prompt prompt_;
};

}  // namespace

Prompt RenderChat(const ChatRequest& request, ChatDialect dialect, const EncodeOptions& options) {
  return Renderer(request, dialect, options).Render();
}

Prompt RenderAnswer(const ChatMessage& answer, ChatDialect dialect, bool thinking) {
  Prompt prompt;
  if (thinking) {
    prompt.AssistantText(answer.reasoning.value_or(""));
    prompt.Control(kThinkEndText);
  }
  prompt.AssistantText(answer.content);
  if (!answer.tool_calls.empty()) AppendToolCalls(answer.tool_calls, dialect, &prompt);
  prompt.Control(kEosText);
  return prompt;
}

EncodedPrompt EncodeChat(const ChatRequest& request, ChatDialect dialect, const Tokenizer& tokenizer,
                         const EncodeOptions& options) {
  return EncodePrompt(RenderChat(request, dialect, options), tokenizer);
}

}  // namespace lockstep
