// UTF-8 as the Unicode standard defines it (table 3-7): validation, replacement, and a stream that never splits
// a character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// The character at an offset.
struct Utf8Char {
  char32_t code_point;  // U+FFFD if not valid
  std::uint8_t length;  // bytes; if not valid, of the maximal ill-formed subpart
  bool valid;
  bool truncated;  // not valid only because the text ends
};

// Decodes the character that starts at bytes[offset]; offset < bytes.size().
Utf8Char DecodeUtf8(std::string_view bytes, std::size_t offset);

// Offset of the first byte that is not part of well-formed UTF-8, or npos.
std::size_t FindInvalidUtf8(std::string_view bytes);

// Throws InputError naming `source` (a file, a flag) and the offset if `bytes` is not well-formed UTF-8.
void RequireUtf8(std::string_view bytes, const std::string& source);

// Appends the UTF-8 form of a scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

// Valid UTF-8: each maximal ill-formed subpart replaced by U+FFFD (the practice that the Unicode standard and
// W3C recommend).
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Bytes in, valid UTF-8 out, as early as possible: holds back at most three bytes of a sequence that may still
// become a character and replaces ill-formed ones at once. All outputs joined, Flush included, equal
// ReplaceInvalidUtf8 of all bytes joined.
class Utf8Stream {
 public:
  std::string Push(std::string_view bytes);
  // What is held, as U+FFFD; the stream is then as new.
  std::string Flush();
  bool holding() const { return !held_.empty(); }

 private:
  std::string held_;
};

}  // namespace lockstep
