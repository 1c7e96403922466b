// Writes events; neighbouring text of one kind becomes one event.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat/output_events.h"

namespace lockstep {

class EventWriter {
 public:
  void SetTarget(std::vector<OutputEvent>* events) { events_ = events; }

  void Reasoning(std::string_view text) { Append<ReasoningDelta>(text); }
  void Content(std::string_view text) { Append<ContentDelta>(text); }
  void Arguments(int index, std::string_view text) {
    if (text.empty()) return;
    auto* last = events_->empty() ? nullptr : std::get_if<ToolCallArgumentsDelta>(&events_->back());
    if (last != nullptr && last->index == index) {
      last->text += text;
    } else {
      events_->push_back(ToolCallArgumentsDelta{.index = index, .text = std::string(text)});
    }
  }
  void Emit(OutputEvent event) { events_->push_back(std::move(event)); }

 private:
  template <typename Delta>
  void Append(std::string_view text) {
    if (text.empty()) return;
    if (auto* last = events_->empty() ? nullptr : std::get_if<Delta>(&events_->back())) {
      last->text += text;
    } else {
      events_->push_back(Delta{.text = std::string(text)});
    }
  }

  std::vector<OutputEvent>* events_ = nullptr;
};

}  // namespace lockstep
