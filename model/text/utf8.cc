#include "model/text/utf8.h"

#include "model/error.h"

namespace lockstep {
namespace {

// What may follow a lead byte: number of continuation bytes, and the range of the first of them (table 3-7).
struct Lead {
  int continuations;
  unsigned char low, high;
};

Lead LeadOf(unsigned char byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view bytes, std::size_t offset) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[offset + i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = LeadOf(first);
  if (lead.continuations == 0) return {kReplacementCharacter, 1, false, false};
  char32_t code_point = first & (0x3Fu >> lead.continuations);
  unsigned char low = lead.low, high = lead.high;
  for (int i = 1; i <= lead.continuations; ++i, low = 0x80, high = 0xBF) {
    const auto length = static_cast<std::uint8_t>(i);
    if (offset + length == bytes.size()) return {kReplacementCharacter, length, false, true};
    if (at(length) < low || at(length) > high) return {kReplacementCharacter, length, false, false};
    code_point = (code_point << 6) | (at(length) & 0x3Fu);
  }
  return {code_point, static_cast<std::uint8_t>(lead.continuations + 1), true, false};
}

std::size_t FindInvalidUtf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Char c = DecodeUtf8(bytes, i);
    if (!c.valid) return i;
    i += c.length;
  }
  return std::string_view::npos;
}

void RequireUtf8(std::string_view bytes, const std::string& source) {
  const std::size_t offset = FindInvalidUtf8(bytes);
  if (offset == std::string_view::npos) return;
  throw InputError(source + ": byte " + std::to_string(offset) + ": expected well-formed UTF-8");
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.Push(bytes);
  text += stream.Flush();
  return text;
}

std::string Utf8Stream::Push(std::string_view bytes) {
  held_ += bytes;
  std::string text;
  text.reserve(held_.size());
  std::size_t i = 0;
  while (i < held_.size()) {
    const Utf8Char c = DecodeUtf8(held_, i);
    if (c.truncated) break;
    if (c.valid) {
      text.append(held_, i, c.length);
    } else {
      AppendUtf8(kReplacementCharacter, &text);
    }
    i += c.length;
  }
  held_.erase(0, i);
  return text;
}

std::string Utf8Stream::Flush() {
  std::string text;
  if (holding()) AppendUtf8(kReplacementCharacter, &text);
  held_.clear();
  return text;
}

}  // namespace lockstep
