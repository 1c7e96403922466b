// The JSON header of a safetensors file, before any of it is believed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // data_offsets
  std::uint64_t end = 0;
};

// The entries of a header in the order of the text, each complete and of the right JSON types; nothing else is
// checked. Throws InputError naming `file` and the tensor for malformed JSON, a repeated name or field, a
// missing or unknown field.
std::vector<HeaderEntry> ParseSafetensorsHeader(std::string_view text, const std::string& file);

}  // namespace lockstep
