// JSON as chat requests need it: objects keep the client's order and numbers keep their lexemes ("1.0", "1E5",
// 30 digits), because schemas and arguments are written back into the prompt and must read there as the client
// sent them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/error.h"

namespace lockstep {

// An error in a request that names the place: what() is "PATH: what was expected", param() the path alone
// ("messages[3].role").
class RequestError : public InputError {
 public:
  RequestError(std::string param, const std::string& expectation)
      : InputError(param + ": " + expectation), param_(std::move(param)) {}
  const std::string& param() const { return param_; }

 private:
  std::string param_;
};

struct JsonMember;

struct Json {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;                 // a string's UTF-8, or a number's lexeme
  std::vector<Json> items;          // array
  std::vector<JsonMember> members;  // object, in order of first appearance; a repeated name keeps its place and
                                    // takes the last value

  static Json Object();
  static Json String(std::string value);

  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }

  // The member's value; nullptr if this is no object, the member is absent or it is null (SDKs send null for
  // "not given").
  const Json* Find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  Json value;
};

inline Json Json::Object() { return {.kind = Kind::kObject}; }
inline Json Json::String(std::string value) { return {.kind = Kind::kString, .text = std::move(value)}; }

// "null", "a boolean", "a number", "a string", "an array" or "an object".
std::string_view JsonKindName(Json::Kind kind);

enum class LoneSurrogates { kReject, kReplace };  // kReplace: U+FFFD

struct JsonReadOptions {
  // Stands before the path in messages: "" for a request body, "messages[3].tool_calls[0].function.arguments"
  // for nested JSON.
  std::string root;
  LoneSurrogates lone_surrogates = LoneSurrogates::kReject;
};

inline constexpr int kMaxJsonDepth = 128;

// Reads a whole document. Throws RequestError that names the path and the byte offset: bad syntax, invalid
// UTF-8, a lone surrogate, more than kMaxJsonDepth nested arrays and objects.
Json ReadJson(std::string_view text, const JsonReadOptions& options = {});

// Appends the string as JSON without the quotes: " and \ escaped, control characters as \b \f \n \r \t or
// \u00xx, the rest raw.
void AppendJsonEscaped(std::string_view text, std::string* out);

// The same with quotes.
void AppendJsonString(std::string_view text, std::string* out);

// Appends the value with ", " and ": " as separators (Python's json.dumps with ensure_ascii=False), numbers by
// lexeme.
void AppendSpacedJson(const Json& value, std::string* out);
std::string SpacedJson(const Json& value);

}  // namespace lockstep
