// JSON from files that nobody vouches for, and text from them inside one-line messages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lockstep {

// `text` fit for an error message: one line, control characters escaped, cut after 120 bytes.
std::string Printable(std::string_view text);

// A compact form of `value` fit for an error message.
std::string PrintableJson(const nlohmann::json& value);

// Parses a whole JSON document. Throws InputError naming `file` if it is malformed, nests deeper than 64 levels
// or repeats a name within one object.
nlohmann::json ParseJson(std::string_view text, const std::string& file);

}  // namespace lockstep
