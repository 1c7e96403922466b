// Properties of characters, Unicode 16.0.0: the version that the `tokenizers` library 0.21 to 0.23 splits by.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// The classes that the pre-tokenizer tells apart. Each code point has one.
enum class CharClass : std::uint8_t {
  kOther,        // controls, format characters, unassigned
  kLetter,       // L
  kMark,         // M
  kNumber,       // N
  kPunctuation,  // P and S
  kSpace,        // White_Space but CR and LF
  kNewline,      // CR and LF
};

inline constexpr char32_t kCodePoints = 0x110000;
using CharClassTable = std::array<CharClass, kCodePoints>;

// Built on first use.
const CharClassTable& CharClasses();

// Each character of well-formed UTF-8 decomposed for compatibility, without marks, in lower case. Equals NFKC,
// NFD, removal of marks and lower-casing in this order, because marks are all that canonical order and
// composition could change.
std::string FoldForEngram(std::string_view utf8);

// White_Space property.
bool IsWhiteSpace(char32_t code_point);

}  // namespace lockstep
