#include "model/text/pre_tokenizer.h"

#include "model/text/utf8.h"

namespace lockstep {
namespace {

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The characters of the second pattern.
bool IsIdeograph(char32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }

}  // namespace

PieceScanner::Char PieceScanner::At(std::size_t offset) const {
  static constexpr Sight kSightOf[] = {Sight::kOther,       Sight::kWordChar, Sight::kWordChar, Sight::kNumber,
                                       Sight::kPunctuation, Sight::kSpace,    Sight::kNewline};
  const auto sight_of = [this](char32_t c) { return kSightOf[static_cast<std::size_t>(classes_[c])]; };
  if (offset >= text_.size()) return {Sight::kBorder, offset};
  const auto byte = static_cast<unsigned char>(text_[offset]);
  if (byte < 0x80) return {among_ideographs_ ? Sight::kBorder : sight_of(byte), offset + 1};
  const Utf8Char c = DecodeUtf8(text_, offset);
  const std::size_t next = offset + c.length;
  if (IsIdeograph(c.code_point) != among_ideographs_) return {Sight::kBorder, next};
  return {c.valid ? sight_of(c.code_point) : Sight::kOther, next};
}

std::size_t PieceScanner::Skip(Sight sight, std::size_t offset) const {
  for (;;) {
    const Char c = At(offset);
    if (c.sight != sight) return offset;
    offset = c.next;
  }
}

std::size_t PieceScanner::MatchNumber(std::size_t offset) const {
  for (int digits = 0; digits < 3; ++digits) {
    const Char c = At(offset);
    if (c.sight != Sight::kNumber) break;
    offset = c.next;
  }
  return offset;
}

// Punctuation at `offset`: with the ASCII letters after it if it is ASCII, else with more punctuation and the
// newlines after.
std::size_t PieceScanner::MatchPunctuation(std::size_t offset) const {
  if (static_cast<unsigned char>(text_[offset]) < 0x80) {
    std::size_t end = offset + 1;
    while (end < text_.size() && IsAsciiLetter(text_[end])) ++end;
    if (end > offset + 1) return end;
  }
  return Skip(Sight::kNewline, Skip(Sight::kPunctuation, offset));
}

// A run of white space: up to its last newline if it has one; else all of it at a border, all but its last
// character before anything else, and that last character when it is alone.
std::size_t PieceScanner::MatchWhiteSpace(std::size_t offset) const {
  std::size_t after_newline = offset;
  std::size_t last = offset;
  std::size_t end = offset;
  for (;;) {
    const Char c = At(end);
    if (c.sight == Sight::kNewline) {
      after_newline = c.next;
    } else if (c.sight != Sight::kSpace) {
      if (after_newline > offset) return after_newline;
      const bool at_border = c.sight == Sight::kNumber || c.sight == Sight::kBorder;
      return at_border || last == offset ? end : last;
    }
    last = end;
    end = c.next;
  }
}

// End of the match that starts at `offset`; `offset` itself if no pattern matches there.
std::size_t PieceScanner::Match(std::size_t offset) const {
  const Char c = At(offset);
  switch (c.sight) {
    case Sight::kNumber:
      return MatchNumber(offset);
    case Sight::kWordChar:
      return Skip(Sight::kWordChar, offset);
    case Sight::kPunctuation:
      return MatchPunctuation(offset);
    case Sight::kSpace: {
      const Sight following = At(c.next).sight;
      if (following == Sight::kWordChar) return Skip(Sight::kWordChar, c.next);
      if (following != Sight::kPunctuation || text_[offset] != ' ') return MatchWhiteSpace(offset);
      return Skip(Sight::kNewline, Skip(Sight::kPunctuation, c.next));
    }
    case Sight::kNewline:
      return MatchWhiteSpace(offset);
    case Sight::kOther: {
      const std::size_t end = Skip(Sight::kWordChar, c.next);
      return end == c.next ? offset : end;
    }
    case Sight::kBorder:
      break;
  }
  return offset;
}

bool PieceScanner::Next(std::string_view* piece) {
  if (position_ == text_.size()) return false;
  among_ideographs_ = IsIdeograph(DecodeUtf8(text_, position_).code_point);
  std::size_t end = Match(position_);
  if (end == position_) {
    do {
      end = At(end).next;
    } while (At(end).sight == Sight::kOther && Match(end) == end);
  }
  *piece = text_.substr(position_, end - position_);
  position_ = end;
  return true;
}

}  // namespace lockstep
