#include "model/chat/output_text.h"

#include <algorithm>
#include <utility>

namespace lockstep {

namespace {

std::string_view BracketText(Holdback::Bracket bracket) {
  switch (bracket) {
    case Holdback::Bracket::kNone:
      return "";
    case Holdback::Bracket::kOpen:
      return "<";
    case Holdback::Bracket::kClose:
      return "</";
  }
  return "";
}

}  // namespace

std::string Holdback::Push(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '/' && bracket_ == Bracket::kOpen) {
      bracket_ = Bracket::kClose;
      continue;
    }
    const bool newline = c == '\n' && holds_newlines_;
    // Held newlines stay held before another newline and before a bracket; a held bracket before neither.
    if (bracket_ != Bracket::kNone || (newlines_ > 0 && !newline && c != '<')) out += Release();
    if (newline) {
      ++newlines_;
    } else if (c == '<') {
      bracket_ = Bracket::kOpen;
    } else {
      out += c;
    }
  }
  return out;
}

std::string Holdback::Release() {
  std::string out(newlines_, '\n');
  out += BracketText(bracket_);
  Forget();
  return out;
}

std::string Holdback::ReleaseNewlines() {
  bracket_ = Bracket::kNone;
  return Release();
}

void Holdback::Forget() {
  newlines_ = 0;
  bracket_ = Bracket::kNone;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  held_ += text;
  std::size_t hit = std::string::npos;
  for (const std::string& stop : stops_) hit = std::min(hit, held_.find(stop));
  if (hit != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, hit);
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) keep = size;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::Release() { return std::exchange(held_, {}); }

SpelledMarkers::SpelledMarkers(Set set) {
  if (set == Set::kNone) return;
  markers_ = {{kDsmlText, ControlKind::kDsml}, {"|DSML|", ControlKind::kDsml}};
  if (set == Set::kDsml) return;
  markers_.push_back({kThinkText, ControlKind::kThink});
  markers_.push_back({kThinkEndText, ControlKind::kThinkEnd});
  markers_.push_back({kEosText, ControlKind::kEos});
}

void SpelledMarkers::Push(std::string_view text, const OnText& on_text, const OnControl& on_control) {
  if (markers_.empty()) return on_text(text);
  const std::string all = std::exchange(held_, {}).append(text);
  const std::string_view view = all;
  std::size_t done = 0;
  for (std::size_t at = 0; at < view.size();) {
    const std::string_view rest = view.substr(at);
    const auto marker = std::find_if(markers_.begin(), markers_.end(), [&](const Marker& m) {
      return rest.starts_with(m.text) || m.text.starts_with(rest);
    });
    if (marker == markers_.end()) {
      ++at;
      continue;
    }
    if (at > done) on_text(view.substr(done, at - done));
    if (!rest.starts_with(marker->text)) {
      held_ = rest;
      return;
    }
    on_control(marker->kind, marker->text);
    at += marker->text.size();
    done = at;
  }
  if (done < view.size()) on_text(view.substr(done));
}

void SpelledMarkers::Release(const OnText& on_text) {
  const std::string held = std::exchange(held_, {});
  if (!held.empty()) on_text(held);
}

}  // namespace lockstep
