#include "model/chat/call_writer.h"

#include <optional>
#include <utility>

#include "model/chat/json.h"

namespace lockstep {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

struct JsonText {
  std::string text;
  Json::Kind kind;
};

// The value as sampled if it is JSON; half surrogate pairs are mended, because a client would send them back
// and fail on them.
std::optional<JsonText> AsJson(std::string_view raw) {
  const std::string_view text = Trimmed(raw);
  try {
    return JsonText{std::string(text), ReadJson(text).kind};
  } catch (const RequestError&) {
  }
  try {
    const Json value = ReadJson(text, {.root = "", .lone_surrogates = LoneSurrogates::kReplace});
    return JsonText{SpacedJson(value), value.kind};
  } catch (const RequestError&) {
    return std::nullopt;
  }
}

}  // namespace

void CallWriter::Begin(int index, std::string id, std::string name) {
  BeginUndelivered();
  delivered_ = true;
  index_ = index;
  events_->Emit(ToolCallBegin{.index = index, .id = std::move(id), .name = std::move(name)});
}

void CallWriter::BeginUndelivered() {
  delivered_ = false;
  names_.clear();
  body_.clear();
  writing_ = false;
}

void CallWriter::BeginParameter(std::string_view bytes, bool is_string) {
  const std::string name = ReplaceInvalidUtf8(bytes);
  const bool first = names_.empty();
  writing_ = delivered_ && names_.insert(name).second;
  if (delivered_ && !writing_) stats_->Count(ParserAnomaly::kDuplicateParameter);
  if (!writing_) return;
  is_string_ = is_string;
  raw_.clear();
  std::string text = first ? "{" : ", ";
  AppendJsonString(name, &text);
  text += is_string ? ": \"" : ": ";
  events_->Arguments(index_, text);
}

void CallWriter::Value(std::string_view bytes) {
  if (!writing_) return;
  if (!is_string_) {
    raw_ += bytes;
    return;
  }
  std::string escaped;
  AppendJsonEscaped(string_.Push(bytes), &escaped);
  events_->Arguments(index_, escaped);
}

void CallWriter::EndParameter() {
  if (!writing_) return;
  writing_ = false;
  if (!is_string_) return WriteJsonValue();
  events_->Arguments(index_, string_.Flush() + "\"");
}

void CallWriter::WriteJsonValue() {
  if (const auto value = AsJson(raw_)) return events_->Arguments(index_, value->text);
  stats_->Count(ParserAnomaly::kInvalidJsonValue);
  std::string text;
  AppendJsonString(ReplaceInvalidUtf8(raw_), &text);
  events_->Arguments(index_, text);
}

void CallWriter::Body(std::string_view bytes) { body_ += bytes; }

void CallWriter::End() {
  EndParameter();
  if (!delivered_) return;
  if (names_.empty()) {
    WriteBody();
  } else {
    if (!Trimmed(body_).empty()) stats_->Count(ParserAnomaly::kMalformedArguments);
    events_->Arguments(index_, "}");
  }
  events_->Emit(ToolCallEnd{.index = index_});
}

void CallWriter::WriteBody() {
  const auto value = AsJson(body_);
  if (value && value->kind == Json::Kind::kObject) return events_->Arguments(index_, value->text);
  if (!Trimmed(body_).empty()) stats_->Count(ParserAnomaly::kMalformedArguments);
  events_->Arguments(index_, "{}");
}

}  // namespace lockstep
