#include "model/chat/output_events.h"

#include <map>
#include <utility>

namespace lockstep {
namespace {

struct Collector {
  CompletedOutput output;
  std::map<int, CompletedCall> open;

  void operator()(const ReasoningDelta& event) { output.reasoning += event.text; }
  void operator()(const ContentDelta& event) { output.content += event.text; }
  void operator()(const ToolCallBegin& event) {
    open[event.index] = {.id = event.id, .name = event.name, .arguments = ""};
  }
  void operator()(const ToolCallArgumentsDelta& event) { open[event.index].arguments += event.text; }
  void operator()(const ToolCallEnd& event) {
    output.tool_calls.push_back(std::move(open.extract(event.index).mapped()));
  }
  void operator()(const OutputFinish& event) { output.finish_reason = event.reason; }
};

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
  }
  return "";
}

CompletedOutput CollectOutput(const std::vector<OutputEvent>& events) {
  Collector collector;
  for (const OutputEvent& event : events) std::visit(collector, event);
  return std::move(collector.output);
}

}  // namespace lockstep
