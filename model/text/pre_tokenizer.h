// Cuts text into the pieces that BPE merges within: DeepSeek's split patterns (V3, V4, V4.1) as a scanner.
//
// Each pattern splits the pieces that the ones before left, matches and gaps alike; what lies between its
// matches are pieces too:
//   1. \p{N}{1,3}
//   2. [一-龥぀-ゟ゠-ヿ]+
//   3. [ascii punctuation][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//      | ' '?[\p{P}\p{S}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/text/unicode.h"

namespace lockstep {

// The patterns as tokenizer.json spells them; the scanner knows no others.
inline constexpr std::string_view kSplitPatterns[] = {
    R"(\p{N}{1,3})",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
    "\r\n"
    R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
    "\r\n"
    R"(]*|\s*[)"
    "\r\n"
    R"(]+|\s+(?!\S)|\s+)",
};

// Pieces of `text` in order, without gaps or overlaps. Linear time. Ill-formed UTF-8: each maximal subpart is
// one unassigned character.
class PieceScanner {
 public:
  explicit PieceScanner(std::string_view text) : classes_(CharClasses()), text_(text) {}

  // The next piece, never empty; false at the end of the text.
  bool Next(std::string_view* piece);

 private:
  // What the third pattern can see: the classes of characters, and where a match of the first two patterns or
  // the text ends.
  enum class Sight : std::uint8_t { kOther, kWordChar, kPunctuation, kSpace, kNewline, kNumber, kBorder };
  struct Char {
    Sight sight;
    std::size_t next;  // offset of the following character
  };

  Char At(std::size_t offset) const;
  std::size_t Skip(Sight sight, std::size_t offset) const;
  std::size_t MatchNumber(std::size_t offset) const;
  std::size_t MatchPunctuation(std::size_t offset) const;
  std::size_t MatchWhiteSpace(std::size_t offset) const;
  std::size_t Match(std::size_t offset) const;

  const CharClassTable& classes_;
  std::string_view text_;
  std::size_t position_ = 0;
  bool among_ideographs_ = false;  // whether the current piece lies in a match of the second pattern
};

}  // namespace lockstep
