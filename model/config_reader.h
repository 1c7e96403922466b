// One object of a config.json: typed, range-checked access to its keys.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Every accessor throws InputError naming the file and the key's path if the key is missing, of another type or
// out of range. A null counts as missing. Integers may be written as floats with an integral value, and the
// other way round.
class ConfigReader {
 public:
  // `object` must outlive the reader. `path` is "" for the root, else "text_config." or the like.
  ConfigReader(const nlohmann::json& object, std::string file, std::string path);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  std::int64_t Int(std::string_view key, std::int64_t low, std::int64_t high) const;
  std::int64_t IntOr(std::string_view key, std::int64_t fallback, std::int64_t low, std::int64_t high) const;
  std::vector<int> Ints(std::string_view key, int low, int high) const;
  std::vector<std::int64_t> Int64s(std::string_view key, std::int64_t low, std::int64_t high) const;
  // A finite number in [low, high].
  double Number(std::string_view key, double low, double high) const;
  bool Bool(std::string_view key) const;
  std::string String(std::string_view key) const;
  // The object at `key`.
  ConfigReader Object(std::string_view key) const;

  // If the key is there, it must have that one value: this program knows no other.
  void ExpectOnly(std::string_view key, const nlohmann::json& value) const;

  // Throws "FILE: key 'PATH' expected EXPECTED, found VALUE".
  [[noreturn]] void Fail(std::string_view key, const std::string& expected) const;

 private:
  // nullptr if missing or null.
  const nlohmann::json* Find(std::string_view key) const;
  // The key's value as an integer, or Fail with the range.
  std::int64_t ToInt(std::string_view key, const nlohmann::json& value, std::int64_t low,
                     std::int64_t high) const;

  const nlohmann::json& object_;
  std::string file_;
  std::string path_;
};

}  // namespace lockstep
