// What a model's output turns into.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep {

struct ReasoningDelta {
  std::string text;
};

struct ContentDelta {
  std::string text;
};

struct ToolCallBegin {
  int index = 0;  // from 0, one a call
  std::string id;
  std::string name;
};

// The pieces of one call, joined up to its ToolCallEnd, are a JSON object.
struct ToolCallArgumentsDelta {
  int index = 0;
  std::string text;
};

// The call is complete. A call without this was cut off and must not be run.
struct ToolCallEnd {
  int index = 0;
};

enum class FinishReason { kStop, kLength, kToolCalls };
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "tool_calls"

struct OutputFinish {
  FinishReason reason = FinishReason::kStop;
};

using OutputEvent = std::variant<ReasoningDelta, ContentDelta, ToolCallBegin, ToolCallArgumentsDelta,
                                 ToolCallEnd, OutputFinish>;

struct CompletedCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON object
};

// A whole answer, for responses that are not streamed.
struct CompletedOutput {
  std::string reasoning;
  std::string content;
  std::vector<CompletedCall> tool_calls;  // complete ones only
  std::optional<FinishReason> finish_reason;
};

// Joins events in order.
CompletedOutput CollectOutput(const std::vector<OutputEvent>& events);

}  // namespace lockstep
