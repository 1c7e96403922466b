#include "model/chat/json.h"

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "model/text/utf8.h"

namespace lockstep {
namespace {

// A path longer than this is cut: nesting errors would print it whole.
constexpr std::size_t kMaxPathSteps = 8;
// Below this many members a linear search for a repeated name is faster than a hash map.
constexpr std::size_t kLinearSearchLimit = 16;

struct PathStep {
  const std::string* key = nullptr;  // null: an array index
  std::size_t index = 0;
};

// Finds repeated names of one object without going quadratic.
class MemberIndex {
 public:
  // The value that belongs to `key`: the earlier one if the name repeats, else a new last member.
  Json* Place(std::string key, Json* object) {
    std::vector<JsonMember>& members = object->members;
    if (const auto found = Lookup(key, members)) return &members[*found].value;
    if (!by_key_.empty()) by_key_.emplace(key, members.size());
    members.push_back({std::move(key), {}});
    if (by_key_.empty() && members.size() > kLinearSearchLimit) {
      for (std::size_t i = 0; i < members.size(); ++i) by_key_.emplace(members[i].key, i);
    }
    return &members.back().value;
  }

 private:
  std::optional<std::size_t> Lookup(const std::string& key, const std::vector<JsonMember>& members) const {
    if (!by_key_.empty()) {
      const auto found = by_key_.find(key);
      if (found == by_key_.end()) return std::nullopt;
      return found->second;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i].key == key) return i;
    }
    return std::nullopt;
  }

  std::unordered_map<std::string, std::size_t> by_key_;
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Reader {
 public:
  Reader(std::string_view text, const JsonReadOptions& options) : text_(text), options_(options) {}

  Json ReadDocument() {
    Json value;
    ReadValue(&value);
    SkipSpace();
    if (at_ < text_.size()) Fail("expected the end of the JSON text");
    return value;
  }

 private:
  [[noreturn]] void Fail(const std::string& expectation) const {
    std::string where = options_.root;
    for (std::size_t i = 0; i < path_.size() && i < kMaxPathSteps; ++i) {
      if (path_[i].key == nullptr) {
        where += "[" + std::to_string(path_[i].index) + "]";
      } else {
        if (!where.empty()) where += ".";
        AppendJsonEscaped(ReplaceInvalidUtf8(*path_[i].key), &where);
      }
    }
    if (path_.size() > kMaxPathSteps) where += "...";
    if (where.empty()) where = "request body";
    throw RequestError(where, expectation + " (byte " + std::to_string(at_) + ")");
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool Take(char c) {
    if (Peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  void ReadValue(Json* value) {
    SkipSpace();
    *value = {};
    switch (Peek()) {
      case '{':
        return ReadObject(value);
      case '[':
        return ReadArray(value);
      case '"':
        value->kind = Json::Kind::kString;
        return ReadString(&value->text);
      case 't':
        value->boolean = true;
        [[fallthrough]];
      case 'f':
        value->kind = Json::Kind::kBool;
        return ReadWord(value->boolean ? "true" : "false");
      case 'n':
        return ReadWord("null");
      default:
        value->kind = Json::Kind::kNumber;
        return ReadNumber(&value->text);
    }
  }

  void ReadWord(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) Fail("expected a JSON value");
    at_ += word.size();
  }

  void Enter() {
    if (++depth_ > kMaxJsonDepth) Fail("JSON nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    ++at_;
    SkipSpace();
  }

  void ReadArray(Json* value) {
    value->kind = Json::Kind::kArray;
    Enter();
    if (!Take(']')) {
      path_.push_back({});
      do {
        path_.back().index = value->items.size();
        ReadValue(&value->items.emplace_back());
        SkipSpace();
      } while (Take(','));
      if (!Take(']')) Fail("expected ',' or ']'");
      path_.pop_back();
    }
    --depth_;
  }

  void ReadObject(Json* value) {
    value->kind = Json::Kind::kObject;
    Enter();
    if (!Take('}')) {
      MemberIndex index;
      do {
        ReadMember(value, &index);
        SkipSpace();
      } while (Take(','));
      if (!Take('}')) Fail("expected ',' or '}'");
    }
    --depth_;
  }

  void ReadMember(Json* object, MemberIndex* index) {
    SkipSpace();
    if (Peek() != '"') Fail("expected a member name in quotes");
    std::string key;
    ReadString(&key);
    SkipSpace();
    if (!Take(':')) Fail("expected ':' after a member name");
    const std::string name = key;
    path_.push_back({.key = &name});
    ReadValue(index->Place(std::move(key), object));
    path_.pop_back();
  }

  void ReadNumber(std::string* lexeme) {
    const std::size_t start = at_;
    Take('-');
    if (!Take('0')) {
      if (!IsDigit(Peek())) Fail("expected a JSON value");
      SkipDigits();
    }
    if (Take('.')) RequireDigits();
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      RequireDigits();
    }
    *lexeme = text_.substr(start, at_ - start);
  }

  void SkipDigits() {
    while (IsDigit(Peek())) ++at_;
  }

  void RequireDigits() {
    if (!IsDigit(Peek())) Fail("expected a digit");
    SkipDigits();
  }

  void ReadString(std::string* out) {
    ++at_;
    while (true) {
      const std::size_t start = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      AppendUtf8Run(start, out);
      if (at_ >= text_.size()) Fail("expected the closing quote of a string");
      if (Take('"')) return;
      if (!Take('\\')) Fail("control character in a string, expected an escape");
      ReadEscape(out);
    }
  }

  void AppendUtf8Run(std::size_t start, std::string* out) {
    const std::string_view run = text_.substr(start, at_ - start);
    const std::size_t bad = FindInvalidUtf8(run);
    if (bad != std::string_view::npos) {
      at_ = start + bad;
      Fail("invalid UTF-8 in a string");
    }
    out->append(run);
  }

  void ReadEscape(std::string* out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char c = Peek();
    if (at_ < text_.size() && c == 'u') return ReadUnicodeEscape(out);
    const std::size_t which = at_ < text_.size() ? kNames.find(c) : std::string_view::npos;
    if (which == std::string_view::npos) Fail("unknown escape in a string");
    ++at_;
    *out += kValues[which];
  }

  // At 'u'. Joins surrogate pairs; a half without its partner is an error or U+FFFD.
  void ReadUnicodeEscape(std::string* out) {
    const std::size_t start = at_;
    char32_t code = ReadHex4();
    if (code >= 0xD800 && code <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
      const std::size_t rewind = at_++;
      const char32_t low = ReadHex4();
      if (low >= 0xDC00 && low <= 0xDFFF) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = rewind;
      }
    }
    if (code >= 0xD800 && code <= 0xDFFF) {
      if (options_.lone_surrogates == LoneSurrogates::kReject) {
        at_ = start - 1;
        Fail("lone surrogate in a string, expected a pair");
      }
      code = kReplacementCharacter;
    }
    AppendUtf8(code, out);
  }

  char32_t ReadHex4() {
    ++at_;
    char32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const int digit = at_ < text_.size() ? HexDigit(text_[at_]) : -1;
      if (digit < 0) Fail("expected four hex digits after \\u");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  std::string_view text_;
  const JsonReadOptions& options_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::vector<PathStep> path_;
};

}  // namespace

const Json* Json::Find(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return member.value.kind == Kind::kNull ? nullptr : &member.value;
  }
  return nullptr;
}

std::string_view JsonKindName(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "a boolean";
    case Json::Kind::kNumber:
      return "a number";
    case Json::Kind::kString:
      return "a string";
    case Json::Kind::kArray:
      return "an array";
    case Json::Kind::kObject:
      return "an object";
  }
  return "";
}

Json ReadJson(std::string_view text, const JsonReadOptions& options) {
  return Reader(text, options).ReadDocument();
}

void AppendJsonEscaped(std::string_view text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += "\\u00";
          *out += kHex[c >> 4];
          *out += kHex[c & 15];
        } else {
          *out += c;
        }
    }
  }
}

void AppendJsonString(std::string_view text, std::string* out) {
  *out += '"';
  AppendJsonEscaped(text, out);
  *out += '"';
}

void AppendSpacedJson(const Json& value, std::string* out) {
  std::string_view separator;
  switch (value.kind) {
    case Json::Kind::kNull:
      *out += "null";
      return;
    case Json::Kind::kBool:
      *out += value.boolean ? "true" : "false";
      return;
    case Json::Kind::kNumber:
      *out += value.text;
      return;
    case Json::Kind::kString:
      return AppendJsonString(value.text, out);
    case Json::Kind::kArray:
      *out += '[';
      for (const Json& item : value.items) {
        *out += separator;
        AppendSpacedJson(item, out);
        separator = ", ";
      }
      *out += ']';
      return;
    case Json::Kind::kObject:
      *out += '{';
      for (const JsonMember& member : value.members) {
        *out += separator;
        AppendJsonString(member.key, out);
        *out += ": ";
        AppendSpacedJson(member.value, out);
        separator = ", ";
      }
      *out += '}';
      return;
  }
}

std::string SpacedJson(const Json& value) {
  std::string out;
  AppendSpacedJson(value, &out);
  return out;
}

}  // namespace lockstep
