#include "model/text/unicode.h"

#include <algorithm>
#include <memory>

#include "model/text/unicode_tables.h"
#include "model/text/utf8.h"

namespace lockstep {
namespace {

constexpr char32_t kHangulFirst = 0xAC00, kHangulLast = 0xD7A3;

void AppendHangulDecomposed(char32_t syllable, std::string* out) {
  constexpr char32_t kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
  constexpr char32_t kVowels = 21, kTrailings = 28;
  const char32_t index = syllable - kHangulFirst;
  AppendUtf8(kLeading + index / (kVowels * kTrailings), out);
  AppendUtf8(kVowel + index / kTrailings % kVowels, out);
  if (index % kTrailings != 0) AppendUtf8(kTrailing + index % kTrailings, out);
}

void AppendFolded(char32_t code_point, std::string* out) {
  const auto entries = FoldEntries();
  const auto entry = std::ranges::lower_bound(entries, code_point, {}, &FoldEntry::code_point);
  if (entry != entries.end() && entry->code_point == code_point) {
    for (const char32_t folded : FoldPool().subspan(entry->begin, entry->length)) AppendUtf8(folded, out);
  } else if (code_point >= kHangulFirst && code_point <= kHangulLast) {
    AppendHangulDecomposed(code_point, out);
  } else if (CharClasses()[code_point] != CharClass::kMark) {
    AppendUtf8(code_point, out);
  }
}

}  // namespace

const CharClassTable& CharClasses() {
  static const std::unique_ptr<const CharClassTable> table = [] {
    auto classes = std::make_unique<CharClassTable>();
    for (const CharClassRange& range : CharClassRanges()) {
      std::fill(classes->begin() + range.first, classes->begin() + range.last + 1, range.char_class);
    }
    return classes;
  }();
  return *table;
}

std::string FoldForEngram(std::string_view utf8) {
  std::string folded;
  for (std::size_t i = 0; i < utf8.size();) {
    const Utf8Char c = DecodeUtf8(utf8, i);
    AppendFolded(c.code_point, &folded);
    i += c.length;
  }
  return folded;
}

bool IsWhiteSpace(char32_t code_point) {
  const CharClass char_class = CharClasses()[code_point];
  return char_class == CharClass::kSpace || char_class == CharClass::kNewline;
}

}  // namespace lockstep
