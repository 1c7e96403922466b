#include "model/json_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "model/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxPrintable = 120;

// Watches the parser's events for what a JSON tree cannot show afterwards.
class StructureCheck {
 public:
  explicit StructureCheck(const std::string& file) : file_(file) {}

  void Observe(json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        names_.emplace_back();
        if (names_.size() > kMaxDepth) {
          throw InputError(file_ + ": JSON nested deeper than " + std::to_string(kMaxDepth) + " levels");
        }
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        names_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& name = parsed.get_ref<const std::string&>();
        if (!names_.back().insert(name).second) {
          throw InputError(file_ + ": key '" + Printable(name) + "' appears twice in one object");
        }
        break;
      }
      case json::parse_event_t::value:
        break;
    }
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> names_;  // of each open object; empty for an array
};

}  // namespace

std::string Printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, kMaxPrintable)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  if (text.size() > kMaxPrintable) out += "...";
  return out;
}

std::string PrintableJson(const nlohmann::json& value) {
  return Printable(std::string_view(value.dump(-1, ' ', false, json::error_handler_t::replace)));
}

json ParseJson(std::string_view text, const std::string& file) {
  // The parser would take a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw InputError(file + ": malformed JSON: NUL at byte " + std::to_string(nul));
  }
  StructureCheck check(file);
  try {
    return json::parse(text.begin(), text.end(), [&](int, json::parse_event_t event, json& parsed) {
      check.Observe(event, parsed);
      return true;
    });
  } catch (const json::parse_error& error) {
    throw InputError(file + ": malformed JSON at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    throw InputError(file + ": malformed JSON: a number out of range");
  }
}

}  // namespace lockstep
