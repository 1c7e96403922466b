#include "model/text/added_tokens.h"

#include <algorithm>

#include "model/text/utf8.h"

namespace lockstep {

std::string SpellToken(const TokenTables& tables, std::int32_t id) {
  const std::string_view bytes = tables.Bytes(id);
  if (tables.Flags(id) & kTokenSpelledRaw) return std::string(bytes);
  std::string text;
  for (const char byte : bytes) AppendUtf8(ByteCharacters()[static_cast<unsigned char>(byte)], &text);
  return text;
}

void AddedTokens::Set::Finish() {
  std::ranges::sort(tokens_, {}, &Token::content);
  for (std::size_t byte = 0; byte <= 256; ++byte) {
    first_[byte] = static_cast<std::size_t>(std::ranges::count_if(
        tokens_, [byte](const Token& token) { return static_cast<unsigned char>(token.content[0]) < byte; }));
  }
}

std::optional<std::int32_t> AddedTokens::Set::Find(std::string_view content) const {
  const auto found = std::ranges::lower_bound(tokens_, content, {}, &Token::content);
  if (found == tokens_.end() || found->content != content) return std::nullopt;
  return found->id;
}

// Narrows the range of tokens that agree with `text` byte by byte; the shortest of a range comes first in it.
const AddedTokens::Set::Token* AddedTokens::Set::LongestPrefixOf(std::string_view text) const {
  const auto byte_at = [](std::size_t depth) {
    return [depth](const Token& token) { return static_cast<unsigned char>(token.content[depth]); };
  };
  const Token* longest = nullptr;
  const auto first_byte = static_cast<unsigned char>(text[0]);
  auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(first_[first_byte]);
  auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(first_[first_byte + std::size_t{1}]);
  for (std::size_t depth = 1; begin != end; ++depth) {
    if (begin->content.size() == depth) longest = &*begin++;
    if (depth == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[depth]);
    begin = std::ranges::lower_bound(begin, end, byte, {}, byte_at(depth));
    end = std::ranges::upper_bound(begin, end, byte, {}, byte_at(depth));
  }
  return longest;
}

void AddedTokens::Set::Split(std::string_view text, std::vector<TextPart>* parts) const {
  std::size_t ordinary = 0;
  const auto flush = [&](std::size_t end) {
    if (end > ordinary) parts->push_back({text.substr(ordinary, end - ordinary)});
  };
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const Token* token =
        first_[byte] == first_[byte + std::size_t{1}] ? nullptr : LongestPrefixOf(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    flush(i);
    parts->push_back({text.substr(i, token->content.size()), token->id});
    i += token->content.size();
    ordinary = i;
  }
  flush(text.size());
}

AddedTokens::AddedTokens(const TokenTables& tables) {
  for (std::int32_t id = 0; id < tables.vocab_size(); ++id) {
    const std::uint8_t flags = tables.Flags(id);
    if (!(flags & kTokenAdded) || tables.Bytes(id).empty()) continue;
    (flags & kTokenNormalized ? normalized_ : plain_).Add(SpellToken(tables, id), id);
  }
  plain_.Finish();
  normalized_.Finish();
}

std::optional<std::int32_t> AddedTokens::Find(std::string_view content) const {
  const auto found = plain_.Find(content);
  return found ? found : normalized_.Find(content);
}

void AddedTokens::Split(std::string_view text, std::vector<TextPart>* parts) const {
  std::vector<TextPart> first_pass;
  plain_.Split(text, &first_pass);
  for (const TextPart& part : first_pass) {
    if (part.id >= 0) {
      parts->push_back(part);
    } else {
      normalized_.Split(part.text, parts);
    }
  }
}

}  // namespace lockstep
