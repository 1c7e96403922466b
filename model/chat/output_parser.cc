#include "model/chat/output_parser.h"

#include <random>
#include <utility>

namespace lockstep {
namespace {

std::string RandomCallId(int index) {
  static constexpr std::string_view kAlphabet =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static constexpr int kRandomLetters = 24;
  thread_local std::random_device device;
  std::uniform_int_distribution<std::size_t> letter(0, kAlphabet.size() - 1);
  std::string id = index < 10 ? "call_0" : "call_";
  id += std::to_string(index) + "_";
  for (int i = 0; i < kRandomLetters; ++i) id += kAlphabet[letter(device)];
  return id;
}

}  // namespace

std::string_view ParserAnomalyName(ParserAnomaly anomaly) {
  static constexpr std::string_view kNames[] = {
      "unclosed_reasoning", "stray_markup",        "bare_invoke",         "missing_closer",
      "invalid_json_value", "duplicate_parameter", "malformed_arguments", "undelivered_call",
      "truncated_call",     "text_after_end",      "hidden_token"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ParserAnomaly::kCount));
  return kNames[static_cast<std::size_t>(anomaly)];
}

OutputParser::OutputParser(const Tokenizer& tokenizer, ControlTokens tokens, OutputParserOptions options)
    : tokenizer_(&tokenizer),
      tokens_(std::move(tokens)),
      options_(std::move(options)),
      markers_(options_.spelled_markers),
      stop_(options_.stops),
      call_(&events_, &stats_) {
  const OutputStart start = options_.start;
  leading_ = start == OutputStart::kReasoning || start == OutputStart::kContent;
  block_open_ = start == OutputStart::kToolBlock;
  if (block_open_) {
    state_ = State::kBlock;
  } else {
    const bool reasoning = start == OutputStart::kReasoning || start == OutputStart::kReasoningContinued;
    state_ = reasoning ? State::kReasoning : State::kContent;
  }
  if (!options_.call_id) options_.call_id = RandomCallId;
}

void OutputParser::PushId(std::int32_t id, std::vector<OutputEvent>* events) {
  const ControlKind kind = tokens_.KindOf(id);
  const std::string_view bytes = tokenizer_->TokenBytes(id);
  ++stats_.tokens;
  const State around = state_ == State::kTag ? outer_ : state_;
  if (around == State::kReasoning && kind != ControlKind::kThinkEnd && kind != ControlKind::kEos)
    ++stats_.reasoning_tokens;
  if (kind == ControlKind::kNone) return PushText(bytes, events);
  events_.SetTarget(events);
  markers_.Release([this](std::string_view text) { OnText(text); });
  OnControl(kind, bytes);
}

void OutputParser::PushText(std::string_view bytes, std::vector<OutputEvent>* events) {
  events_.SetTarget(events);
  markers_.Push(
      bytes, [this](std::string_view text) { OnText(text); },
      [this](ControlKind kind, std::string_view spelling) { OnControl(kind, spelling); });
}

void OutputParser::Finish(OutputEnd end, std::vector<OutputEvent>* events) {
  events_.SetTarget(events);
  markers_.Release([this](std::string_view text) { OnText(text); });
  const bool cut_off = end == OutputEnd::kLength && !complete();
  OnOutputOver();
  FinishReason reason = calls_ended_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
  if (cut_off) reason = FinishReason::kLength;
  if (stop_.stopped()) reason = FinishReason::kStop;
  events_.Emit(OutputFinish{.reason = reason});
}

void OutputParser::OnText(std::string_view text) {
  while (state_ == State::kTag && !text.empty()) {
    text.remove_prefix(tag_->Push(text));
    if (tag_->state() != DsmlTagReader::State::kReading) CloseTag();
  }
  if (text.empty()) return;
  switch (state_) {
    case State::kReasoning:
    case State::kContent:
      return OnVisible(text);
    case State::kBlock:
      value_hold_.Push(text);
      return;
    case State::kInvoke:
      return call_.Body(value_hold_.Push(text));
    case State::kValue:
      return call_.Value(value_hold_.Push(text));
    case State::kDone:
      return OnTextAfterEnd(text);
    case State::kTag:
      return;
  }
}

void OutputParser::OnTextAfterEnd(std::string_view text) {
  const bool counted = stats_.Of(ParserAnomaly::kTextAfterEnd) > 0;
  if (!counted && !stop_.stopped() && text.find_first_not_of(" \t\r\n") != std::string_view::npos) {
    stats_.Count(ParserAnomaly::kTextAfterEnd);
  }
}

void OutputParser::OnVisible(std::string_view text) {
  if (leading_) {
    const std::size_t begin = text.find_first_not_of('\n');
    if (begin == std::string_view::npos) return;
    text.remove_prefix(begin);
    leading_ = false;
  }
  WriteVisible(text_hold_.Push(text));
}

void OutputParser::WriteVisible(std::string_view bytes) {
  const std::string text = utf8_.Push(bytes);
  if (state_ == State::kReasoning) return events_.Reasoning(text);
  events_.Content(stop_.Push(text));
  if (stop_.stopped()) state_ = State::kDone;
}

// The text is over: what was kept because it might have gone on is shown.
void OutputParser::FlushVisible() {
  const std::string tail = utf8_.Flush();
  if (state_ == State::kReasoning) return events_.Reasoning(tail);
  events_.Content(stop_.Push(tail));
  if (!stop_.stopped()) events_.Content(stop_.Release());
}

void OutputParser::OnControl(ControlKind kind, std::string_view spelling) {
  if (state_ == State::kDone) return;
  if (kind == ControlKind::kDsml) return OnDsml(spelling);
  if (kind == ControlKind::kEos) return OnOutputOver();
  if (state_ == State::kValue) {
    call_.Value(value_hold_.Release());
    call_.Value(spelling);
  } else if (kind == ControlKind::kThinkEnd && state_ == State::kReasoning) {
    OnThinkEnd();
  } else {
    stats_.Count(kind == ControlKind::kHidden ? ParserAnomaly::kHiddenToken : ParserAnomaly::kStrayMarkup);
  }
}

void OutputParser::OnThinkEnd() {
  // Newlines before it are not part of the reasoning.
  if (text_hold_.bracket() != Holdback::Bracket::kNone) WriteVisible(text_hold_.Release());
  text_hold_.Forget();
  FlushVisible();
  state_ = State::kContent;
  leading_ = true;
}

void OutputParser::OnDsml(std::string_view spelling) {
  bool closing = false;
  if (state_ == State::kTag) {
    closing = tag_->TakeBracket() == "</";
    tag_->End();
    CloseTag();
    if (state_ == State::kDone) return;
  } else {
    closing = hold().bracket() == Holdback::Bracket::kClose;
  }
  if (state_ == State::kValue && !closing) {
    // Only a closing tag ends a value.
    call_.Value(value_hold_.Release());
    return call_.Value(spelling);
  }
  tag_opening_ = "</" + std::string(spelling);
  OpenTag(closing);
}

void OutputParser::OnOutputOver() {
  if (state_ == State::kDone) return;
  if (state_ == State::kTag) {
    const bool cut_off = tag_->MayBecomeTag();
    tag_->End();
    if (!cut_off || (tag_->state() == DsmlTagReader::State::kComplete && tag_->tag().closing)) {
      CloseTag();
    } else {
      state_ = outer_;
      text_hold_.Forget();
      stats_.Count(ParserAnomaly::kStrayMarkup);
    }
  }
  if (InCall()) stats_.Count(ParserAnomaly::kTruncatedCall);
  if (InText()) WriteVisible(text_hold_.Release());
  if (InText()) FlushVisible();
  state_ = State::kDone;
}

void OutputParser::OpenTag(bool closing) {
  outer_ = state_;
  state_ = State::kTag;
  // In text the newlines before the tag stay held: they come back if it turns out to be none.
  if (outer_ != State::kReasoning && outer_ != State::kContent) value_hold_.Forget();
  tag_.emplace(closing);
}

void OutputParser::CloseTag() {
  const DsmlTagReader reader = *std::exchange(tag_, std::nullopt);
  state_ = outer_;
  if (reader.state() != DsmlTagReader::State::kComplete) return NotATag(reader.text());
  switch (outer_) {
    case State::kReasoning:
    case State::kContent:
      return TagInText(reader.tag());
    case State::kBlock:
      return TagInBlock(reader.tag());
    case State::kInvoke:
      return TagInInvoke(reader.tag());
    case State::kValue:
      return TagInValue(reader.tag());
    default:
      return;
  }
}

void OutputParser::NotATag(const std::string& text) {
  if (state_ == State::kValue) {
    call_.Value(tag_opening_);
  } else {
    stats_.Count(ParserAnomaly::kStrayMarkup);
    if (InText()) WriteVisible(text_hold_.ReleaseNewlines());
  }
  OnText(text);
}

void OutputParser::TagInText(const DsmlTag& tag) {
  if (tag.closing) {
    stats_.Count(ParserAnomaly::kStrayMarkup);
    return text_hold_.Forget();
  }
  LeaveText();
  if (state_ == State::kDone) return;
  state_ = State::kBlock;
  if (tag.word == DsmlWord::kBlock) {
    block_open_ = true;
  } else if (tag.word == DsmlWord::kInvoke) {
    BeginCall(tag);
  } else {
    stats_.Count(ParserAnomaly::kStrayMarkup);
  }
}

void OutputParser::LeaveText() {
  if (state_ == State::kReasoning) stats_.Count(ParserAnomaly::kUnclosedReasoning);
  text_hold_.Forget();
  FlushVisible();
  if (stop_.stopped()) state_ = State::kDone;
}

void OutputParser::TagInBlock(const DsmlTag& tag) {
  if (tag.word == DsmlWord::kInvoke && !tag.closing) return BeginCall(tag);
  if (tag.word == DsmlWord::kBlock && tag.closing) {
    state_ = State::kDone;
  } else if (tag.word == DsmlWord::kBlock && !block_open_) {
    block_open_ = true;
  } else {
    stats_.Count(ParserAnomaly::kStrayMarkup);
  }
}

void OutputParser::TagInInvoke(const DsmlTag& tag) {
  if (tag.word == DsmlWord::kParameter && !tag.closing) {
    state_ = State::kValue;
    if (tag.name) return call_.BeginParameter(*tag.name, tag.is_string);
    return stats_.Count(ParserAnomaly::kMalformedArguments);
  }
  if (tag.word == DsmlWord::kParameter || (tag.word == DsmlWord::kBlock && !tag.closing)) {
    return stats_.Count(ParserAnomaly::kStrayMarkup);
  }
  if (tag.word == DsmlWord::kInvoke && tag.closing) return EndCall();
  stats_.Count(ParserAnomaly::kMissingCloser);
  EndCall();
  TagInBlock(tag);
}

void OutputParser::TagInValue(const DsmlTag& tag) {
  call_.EndParameter();
  state_ = State::kInvoke;
  if (tag.word == DsmlWord::kParameter) return;
  stats_.Count(ParserAnomaly::kMissingCloser);
  TagInInvoke(tag);
}

void OutputParser::BeginCall(const DsmlTag& tag) {
  if (!block_open_) stats_.Count(ParserAnomaly::kBareInvoke);
  const bool room = options_.max_calls == 0 || calls_begun_ < options_.max_calls;
  call_delivered_ = options_.deliver_calls && room && tag.name && !tag.name->empty();
  state_ = State::kInvoke;
  if (!call_delivered_) {
    stats_.Count(ParserAnomaly::kUndeliveredCall);
    return call_.BeginUndelivered();
  }
  const int index = calls_begun_++;
  call_.Begin(index, options_.call_id(index), ReplaceInvalidUtf8(*tag.name));
}

void OutputParser::EndCall() {
  call_.End();
  if (call_delivered_) ++calls_ended_;
  state_ = State::kBlock;
}

}  // namespace lockstep
