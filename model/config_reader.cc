#include "model/config_reader.h"

#include <cmath>

#include "model/error.h"
#include "model/json_text.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::string Range(std::int64_t low, std::int64_t high) {
  return " from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {}

const json* ConfigReader::Find(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::Fail(std::string_view key, const std::string& expected) const {
  const json* value = Find(key);
  const std::string found = value == nullptr ? "nothing" : PrintableJson(*value);
  throw InputError(file_ + ": key '" + path_ + std::string(key) + "': expected " + expected + ", found " +
                   found);
}

std::int64_t ConfigReader::ToInt(std::string_view key, const json& value, std::int64_t low,
                                 std::int64_t high) const {
  std::int64_t result = 0;
  bool good = false;
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    result = static_cast<std::int64_t>(number);
    good = number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  } else if (value.is_number_integer()) {
    result = value.get<std::int64_t>();
    good = true;
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    good = std::fabs(number) <= 0x1p53 && number == std::trunc(number);
    if (good) result = static_cast<std::int64_t>(number);
  }
  if (!good || result < low || result > high) Fail(key, "an integer" + Range(low, high));
  return result;
}

std::int64_t ConfigReader::Int(std::string_view key, std::int64_t low, std::int64_t high) const {
  const json* value = Find(key);
  if (value == nullptr) Fail(key, "an integer" + Range(low, high));
  return ToInt(key, *value, low, high);
}

std::int64_t ConfigReader::IntOr(std::string_view key, std::int64_t fallback, std::int64_t low,
                                 std::int64_t high) const {
  return Has(key) ? Int(key, low, high) : fallback;
}

std::vector<std::int64_t> ConfigReader::Int64s(std::string_view key, std::int64_t low,
                                               std::int64_t high) const {
  const json* value = Find(key);
  if (value == nullptr || !value->is_array()) Fail(key, "a list of integers" + Range(low, high));
  std::vector<std::int64_t> numbers;
  for (const json& item : *value) numbers.push_back(ToInt(key, item, low, high));
  return numbers;
}

std::vector<int> ConfigReader::Ints(std::string_view key, int low, int high) const {
  const std::vector<std::int64_t> numbers = Int64s(key, low, high);
  return {numbers.begin(), numbers.end()};
}

double ConfigReader::Number(std::string_view key, double low, double high) const {
  const json* value = Find(key);
  const bool is_number = value != nullptr && value->is_number();
  const double number = is_number ? value->get<double>() : 0;
  if (!is_number || !(number >= low && number <= high)) {
    Fail(key, "a number from " + json(low).dump() + " to " + json(high).dump());
  }
  return number;
}

bool ConfigReader::Bool(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr || !value->is_boolean()) Fail(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::String(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr || !value->is_string()) Fail(key, "a string");
  return value->get<std::string>();
}

ConfigReader ConfigReader::Object(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr || !value->is_object()) Fail(key, "an object");
  return {*value, file_, path_ + std::string(key) + "."};
}

void ConfigReader::ExpectOnly(std::string_view key, const json& value) const {
  const json* found = Find(key);
  if (found != nullptr && *found != value) Fail(key, PrintableJson(value) + " (the only supported value)");
}

}  // namespace lockstep
