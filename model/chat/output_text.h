// Three small filters between sampled bytes and visible text. Each holds back what it cannot decide yet.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/control_tokens.h"

namespace lockstep {

// Holds back a suffix that may belong to markup: newlines (they belong to a tag or </think> that follows them),
// then "<" or "</".
class Holdback {
 public:
  enum class Bracket { kNone, kOpen, kClose };

  explicit Holdback(bool holds_newlines) : holds_newlines_(holds_newlines) {}

  // Takes `text`, returns what is certainly no markup.
  std::string Push(std::string_view text);
  Bracket bracket() const { return bracket_; }
  // Everything held, as text; nothing is held afterwards.
  std::string Release();
  // The held newlines as text; a held bracket is forgotten.
  std::string ReleaseNewlines();
  void Forget();

 private:
  bool holds_newlines_;
  std::size_t newlines_ = 0;
  Bracket bracket_ = Bracket::kNone;
};

// Cuts text at the first stop string; holds back a suffix that may begin one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  // Takes `text`, returns what may be shown. Once a stop string was found nothing more is.
  std::string Push(std::string_view text);
  std::string Release();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;  // none empty
  std::string held_;
  bool stopped_ = false;
};

// Finds control tokens that are spelled out in text.
class SpelledMarkers {
 public:
  enum class Set {
    kNone,
    kDsml,  // ｜DSML｜ and |DSML|
    kAll,   // also <think>, </think> and the end token
  };
  using OnText = std::function<void(std::string_view)>;
  using OnControl = std::function<void(ControlKind, std::string_view)>;

  explicit SpelledMarkers(Set set);

  void Push(std::string_view text, const OnText& on_text, const OnControl& on_control);
  void Release(const OnText& on_text);

 private:
  struct Marker {
    std::string_view text;
    ControlKind kind;
  };

  std::vector<Marker> markers_;
  std::string held_;
};

}  // namespace lockstep
