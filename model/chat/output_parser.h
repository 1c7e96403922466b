// Sampled ids in, events out: reasoning, visible text, tool calls (docs/chat.md has the states).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/call_writer.h"
#include "model/chat/control_tokens.h"
#include "model/chat/dsml_tag.h"
#include "model/chat/output_events.h"
#include "model/chat/output_text.h"
#include "model/chat/parser_stats.h"
#include "model/chat/prompt.h"
#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

namespace lockstep {

struct OutputParserOptions {
  OutputStart start = OutputStart::kContent;  // of the prompt
  // Calls are delivered. Off (no tools declared, tool_choice "none"): their markup is still left out of the
  // text.
  bool deliver_calls = true;
  int max_calls = 0;  // 0: no limit; 1 for parallel_tool_calls false
  // Each ends the visible text where it begins; none is looked for in reasoning and calls.
  std::vector<std::string> stops;
  // Control tokens spelled out in ordinary text: none count, or those of calls (for models that misspell them),
  // or all (text without token boundaries).
  SpelledMarkers::Set spelled_markers = SpelledMarkers::Set::kNone;
  // The id of the call with this index; must be unique in its conversation. Default: "call_00_" and random
  // letters and digits, with the index in front so that ids sort as calls do.
  std::function<std::string(int)> call_id;
};

// Why sampling ended.
enum class OutputEnd { kEndToken, kLength };

// Takes any ids and any bytes. Whatever the split into Push calls, the joined events are the same. Every call
// that gets its ToolCallEnd has arguments that are a JSON object; all text is valid UTF-8.
class OutputParser {
 public:
  // The tokenizer must outlive the parser.
  OutputParser(const Tokenizer& tokenizer, ControlTokens tokens, OutputParserOptions options);
  OutputParser(const OutputParser&) = delete;
  OutputParser& operator=(const OutputParser&) = delete;

  // Append to `events` what became certain.
  void PushId(std::int32_t id, std::vector<OutputEvent>* events);
  void PushText(std::string_view bytes, std::vector<OutputEvent>* events);
  // Ends the output: what is held becomes text, an unfinished call stays without ToolCallEnd, OutputFinish
  // comes last.
  void Finish(OutputEnd end, std::vector<OutputEvent>* events);

  // Nothing that follows can be shown (end token, end of the call block, stop string): sampling may end.
  bool complete() const { return state_ == State::kDone; }
  bool stopped_by_string() const { return stop_.stopped(); }
  const ParserStats& stats() const { return stats_; }

 private:
  enum class State {
    kReasoning,
    kContent,
    kBlock,   // between calls
    kInvoke,  // in a call, between parameters
    kValue,   // in a parameter
    kTag,     // in a tag; outer_ is the state around it
    kDone,
  };

  void OnText(std::string_view text);
  void OnVisible(std::string_view text);
  void OnTextAfterEnd(std::string_view text);
  void OnControl(ControlKind kind, std::string_view spelling);
  void OnThinkEnd();
  void OnDsml(std::string_view spelling);
  void OnOutputOver();

  Holdback& hold() { return InText() ? text_hold_ : value_hold_; }
  bool InText() const { return state_ == State::kReasoning || state_ == State::kContent; }
  bool InCall() const { return state_ == State::kInvoke || state_ == State::kValue; }

  void OpenTag(bool closing);
  void CloseTag();
  void NotATag(const std::string& text);
  void TagInText(const DsmlTag& tag);
  void TagInBlock(const DsmlTag& tag);
  void TagInInvoke(const DsmlTag& tag);
  void TagInValue(const DsmlTag& tag);

  void WriteVisible(std::string_view bytes);
  void FlushVisible();
  void LeaveText();
  void BeginCall(const DsmlTag& tag);
  void EndCall();

  const Tokenizer* tokenizer_;
  ControlTokens tokens_;
  OutputParserOptions options_;
  SpelledMarkers markers_;
  StopMatcher stop_;
  ParserStats stats_;
  EventWriter events_;
  CallWriter call_;

  State state_;
  State outer_ = State::kContent;
  bool leading_;     // newlines at the start of a text are left out
  bool block_open_;  // a block was opened, so that calls in it are not bare
  bool call_delivered_ = false;
  int calls_begun_ = 0;  // delivered ones
  int calls_ended_ = 0;
  Holdback text_hold_{/*holds_newlines=*/true};
  Holdback value_hold_{/*holds_newlines=*/false};
  Utf8Stream utf8_;  // the last bytes of visible text while they may be part of a character
  std::optional<DsmlTagReader> tag_;
  std::string tag_opening_;  // "</｜DSML｜" as it was spelled
};

}  // namespace lockstep
