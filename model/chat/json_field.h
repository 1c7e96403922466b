// Typed access to JSON together with its path, so that every error of a request names its place.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/json.h"

namespace lockstep {

// A value, which may be absent, and where it stands.
class JsonField {
 public:
  JsonField(const Json* value, std::string path) : value_(value), path_(std::move(path)) {}

  bool present() const { return value_ != nullptr; }
  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }

  // A member; absent if this is absent, no object, or the member is missing or null.
  JsonField operator[](std::string_view key) const;
  // The elements of an array; throws RequestError if this is something else. Empty if absent.
  std::vector<JsonField> Elements() const;

  // Throw RequestError unless the value has the type. Requires present().
  const std::string& AsString() const;
  bool AsBool() const;
  const Json& AsObject() const;

  std::string StringOr(std::string_view fallback) const {
    return present() ? AsString() : std::string(fallback);
  }
  bool BoolOr(bool fallback) const { return present() ? AsBool() : fallback; }

  // Throws RequestError: "PATH: expected EXPECTATION, got ...".
  [[noreturn]] void FailExpected(std::string_view expectation) const;
  [[noreturn]] void Fail(const std::string& message) const { throw RequestError(path_, message); }

 private:
  const Json* value_;
  std::string path_;
};

}  // namespace lockstep
