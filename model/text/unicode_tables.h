// Generated tables (make_unicode_tables.py), Unicode 16.0.0. Use unicode.h.
#pragma once

#include <cstdint>
#include <span>

#include "model/text/unicode.h"

namespace lockstep {

struct CharClassRange {
  char32_t first, last;
  CharClass char_class;
};

// The code point becomes FoldPool()[begin, begin + length).
struct FoldEntry {
  char32_t code_point;
  std::uint16_t begin;
  std::uint8_t length;
};

// Ascending and disjoint; what no range names is kOther.
std::span<const CharClassRange> CharClassRanges();
// Ascending by code point; what no entry names folds to itself, except marks and Hangul syllables.
std::span<const FoldEntry> FoldEntries();
std::span<const char32_t> FoldPool();

}  // namespace lockstep
