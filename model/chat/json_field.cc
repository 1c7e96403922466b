#include "model/chat/json_field.h"

#include <utility>

namespace lockstep {
namespace {

// Values longer than this are cut in messages.
constexpr std::size_t kMaxShownBytes = 40;

std::string Shown(const Json* value) {
  if (value == nullptr) return "nothing";
  if (!value->is_string()) return std::string(JsonKindName(value->kind));
  std::string shown;
  std::size_t size = value->text.size();
  if (size > kMaxShownBytes) {
    size = kMaxShownBytes;
    while (size > 0 && (value->text[size] & 0xC0) == 0x80) --size;
  }
  AppendJsonString(std::string_view(value->text).substr(0, size), &shown);
  return size < value->text.size() ? shown + "..." : shown;
}

}  // namespace

JsonField JsonField::operator[](std::string_view key) const {
  std::string path = path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  return {present() ? value_->Find(key) : nullptr, std::move(path)};
}

std::vector<JsonField> JsonField::Elements() const {
  std::vector<JsonField> elements;
  if (!present()) return elements;
  if (!value_->is_array()) FailExpected("an array");
  elements.reserve(value_->items.size());
  for (std::size_t i = 0; i < value_->items.size(); ++i) {
    elements.emplace_back(&value_->items[i], path_ + "[" + std::to_string(i) + "]");
  }
  return elements;
}

const std::string& JsonField::AsString() const {
  if (!present() || !value_->is_string()) FailExpected("a string");
  return value_->text;
}

bool JsonField::AsBool() const {
  if (!present() || value_->kind != Json::Kind::kBool) FailExpected("a boolean");
  return value_->boolean;
}

const Json& JsonField::AsObject() const {
  if (!present() || !value_->is_object()) FailExpected("an object");
  return *value_;
}

void JsonField::FailExpected(std::string_view expectation) const {
  Fail("expected " + std::string(expectation) + ", got " + Shown(value_));
}

}  // namespace lockstep
