// Cutting added tokens (control tokens among them) out of text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/token_tables.h"

namespace lockstep {

// An added token (id >= 0), or ordinary text between added tokens (id -1).
struct TextPart {
  std::string_view text;
  std::int32_t id = -1;
};

class AddedTokens {
 public:
  explicit AddedTokens(const TokenTables& tables);

  std::optional<std::int32_t> Find(std::string_view content) const;
  // Appends the parts of `text` in order, none empty. As the `tokenizers` library does it: leftmost, longest;
  // first all tokens not marked "normalized", then the others in what is left.
  void Split(std::string_view text, std::vector<TextPart>* parts) const;

 private:
  // Tokens sorted by content, and where those with each first byte begin.
  class Set {
   public:
    void Add(std::string content, std::int32_t id) { tokens_.push_back({std::move(content), id}); }
    void Finish();
    std::optional<std::int32_t> Find(std::string_view content) const;
    void Split(std::string_view text, std::vector<TextPart>* parts) const;

   private:
    struct Token {
      std::string content;
      std::int32_t id;
    };
    const Token* LongestPrefixOf(std::string_view text) const;

    std::vector<Token> tokens_;
    std::array<std::size_t, 257> first_{};
  };

  Set plain_, normalized_;
};

// The token as tokenizer.json spells it.
std::string SpellToken(const TokenTables& tables, std::int32_t id);

}  // namespace lockstep
