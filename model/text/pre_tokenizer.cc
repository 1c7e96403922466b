#include "model/text/pre_tokenizer.h"

#include "model/text/utf8.h"

namespace lockstep {
namespace {

// The third pattern sees text between numbers and ideographs only, so these end a match as the end of the text does.
constexpr CharClass kEndOfText = CharClass::kIdeograph;

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

PieceScanner::Char PieceScanner::At(std::size_t offset) const {
  if (offset >= text_.size()) return {kEndOfText, offset};
  const auto byte = static_cast<unsigned char>(text_[offset]);
  if (byte < 0x80) return {classes_[byte], offset + 1};
  const Utf8Char c = DecodeUtf8(text_, offset);
  return {c.valid ? classes_[c.code_point] : CharClass::kOther, offset + c.length};
}

bool PieceScanner::IsWordCharAt(std::size_t offset) const {
  const CharClass char_class = At(offset).char_class;
  return char_class == CharClass::kLetter || char_class == CharClass::kMark;
}

std::size_t PieceScanner::SkipWordChars(std::size_t offset) const {
  for (;;) {
    const Char c = At(offset);
    if (c.char_class != CharClass::kLetter && c.char_class != CharClass::kMark) return offset;
    offset = c.next;
  }
}

std::size_t PieceScanner::SkipClass(CharClass char_class, std::size_t offset) const {
  while (offset < text_.size()) {
    const Char c = At(offset);
    if (c.char_class != char_class) break;
    offset = c.next;
  }
  return offset;
}

std::size_t PieceScanner::MatchNumber(std::size_t offset) const {
  for (int digits = 0; digits < 3; ++digits) {
    const Char c = At(offset);
    if (c.char_class != CharClass::kNumber) break;
    offset = c.next;
  }
  return offset;
}

// Punctuation at `offset`: with the ASCII letters after it if it is ASCII, else with more punctuation and the newlines after.
std::size_t PieceScanner::MatchPunctuation(std::size_t offset) const {
  std::size_t end = offset + 1;
  while (end < text_.size() && IsAsciiLetter(text_[end])) ++end;
  const bool is_ascii = static_cast<unsigned char>(text_[offset]) < 0x80;
  if (is_ascii && end > offset + 1) return end;
  return SkipClass(CharClass::kNewline, SkipClass(CharClass::kPunctuation, offset));
}

// A run of white space: up to its last newline if it has one; else all of it at the end of the text, all but its last character
// before anything else, and that last character when it is alone.
std::size_t PieceScanner::MatchWhiteSpace(std::size_t offset) const {
  std::size_t after_newline = offset;
  std::size_t last = offset;
  std::size_t end = offset;
  for (;;) {
    const Char c = At(end);
    if (c.char_class == CharClass::kNewline) {
      after_newline = c.next;
    } else if (c.char_class != CharClass::kSpace) {
      if (after_newline > offset) return after_newline;
      const bool ends_here = c.char_class == CharClass::kNumber || c.char_class == CharClass::kIdeograph;
      return ends_here || last == offset ? end : last;
    }
    last = end;
    end = c.next;
  }
}

// End of the match that starts at `offset`; `offset` itself if no pattern matches there.
std::size_t PieceScanner::Match(std::size_t offset) const {
  const Char c = At(offset);
  switch (c.char_class) {
    case CharClass::kNumber:
      return MatchNumber(offset);
    case CharClass::kIdeograph:
      return SkipClass(CharClass::kIdeograph, offset);
    case CharClass::kLetter:
    case CharClass::kMark:
      return SkipWordChars(offset);
    case CharClass::kPunctuation:
      return MatchPunctuation(offset);
    case CharClass::kSpace:
      if (IsWordCharAt(c.next)) return SkipWordChars(c.next);
      if (text_[offset] == ' ' && At(c.next).char_class == CharClass::kPunctuation) {
        return SkipClass(CharClass::kNewline, SkipClass(CharClass::kPunctuation, c.next));
      }
      return MatchWhiteSpace(offset);
    case CharClass::kNewline:
      return MatchWhiteSpace(offset);
    case CharClass::kOther:
      return IsWordCharAt(c.next) ? SkipWordChars(c.next) : offset;
  }
  return offset;
}

bool PieceScanner::Next(std::string_view* piece) {
  if (position_ == text_.size()) return false;
  std::size_t end = Match(position_);
  if (end == position_) {
    do {
      end = At(end).next;
    } while (end < text_.size() && Match(end) == end);
  }
  *piece = text_.substr(position_, end - position_);
  position_ = end;
  return true;
}

}  // namespace lockstep
