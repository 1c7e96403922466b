// Reading a Hugging Face tokenizer.json into plain data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Ids and ranks lie below these, so that a merge packs into 64 bits.
inline constexpr std::int64_t kMaxVocabSize = std::int64_t{1} << 20;
inline constexpr std::size_t kMaxMerges = (std::size_t{1} << 24) - 1;

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool normalized = false;  // cut out in a second pass, after the tokens that are not
  bool special = false;
};

struct VocabularyEntry {
  std::string text;  // one character a byte
  std::int32_t id = 0;
};

struct Merge {
  std::string left, right;
};

struct TokenizerSpec {
  std::vector<AddedToken> added;
  std::vector<VocabularyEntry> vocabulary;
  std::vector<Merge> merges;  // the index is the rank
};

// Parses and checks everything that decides an id. `file` is for messages. Throws InputError naming file and
// field for malformed JSON, a missing or mistyped field, and any feature other than byte-level BPE with the
// patterns of pre_tokenizer.h.
TokenizerSpec ParseTokenizerJson(std::string_view json, const std::string& file);

// GPT-2's byte map: the character that stands for each byte in the vocabulary.
const std::array<char32_t, 256>& ByteCharacters();

}  // namespace lockstep
