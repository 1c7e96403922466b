// The vocabulary and its merges as flat tables in one block of bytes, which the binary cache stores and maps
// unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/text/tokenizer_json.h"

namespace lockstep {

inline constexpr std::uint32_t kNoRank = 0xFFFFFFFFu;

// Bits of a token's flags. Spelled raw: tokenizer.json has its text as it is, not a character a byte.
inline constexpr std::uint8_t kTokenPresent = 1, kTokenAdded = 2, kTokenSpecial = 4, kTokenNormalized = 8,
                              kTokenSpelledRaw = 16;

// Read-only tables over an image that BuildTokenImage made; the image must outlive them. Copying is cheap.
class TokenTables {
 public:
  // Looks at the sizes and every index in the image: afterwards no lookup can leave it. False if it is not a
  // whole, sound image.
  static bool Open(std::span<const std::byte> image, TokenTables* tables);

  int vocab_size() const { return static_cast<int>(flags_.size()); }
  std::uint64_t source_hash() const { return source_hash_; }
  std::uint64_t source_size() const { return source_size_; }

  bool IsValidId(std::int32_t id) const { return id >= 0 && id < vocab_size(); }
  // 0 for an id out of range or without a token.
  std::uint8_t Flags(std::int32_t id) const { return IsValidId(id) ? flags_[static_cast<std::size_t>(id)] : 0; }
  std::string_view Bytes(std::int32_t id) const {
    if (!IsValidId(id)) return {};
    const auto i = static_cast<std::size_t>(id);
    return {token_bytes_.data() + token_offsets_[i], token_offsets_[i + 1] - token_offsets_[i]};
  }

  std::int32_t ByteId(unsigned char byte) const { return byte_ids_[byte]; }
  // Rank of the merge of two adjacent tokens, or kNoRank.
  std::uint32_t MergeRank(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = MergeKey(left, right);
    for (std::uint64_t slot = HashMerge(key);; ++slot) {
      const std::uint64_t entry = merge_slots_[slot & merge_mask_];
      if (entry >> kRankBits == key) return static_cast<std::uint32_t>(entry & kRankMask);
      if (entry == kEmptySlot) return kNoRank;
    }
  }
  std::int32_t MergeResult(std::uint32_t rank) const { return merge_results_[rank]; }
  // The token that these bytes, as a piece, encode to when they encode to one token; -1 if to several or if it
  // is not known.
  std::int32_t WholePiece(std::string_view piece) const;

 private:
  friend class TokenImageBuilder;

  static constexpr int kRankBits = 24;
  static constexpr std::uint64_t kRankMask = (std::uint64_t{1} << kRankBits) - 1;
  static constexpr std::uint64_t kEmptySlot = ~std::uint64_t{0};
  struct WordSlot {
    std::uint32_t tag;
    std::int32_t id;  // -1: empty
  };

  static std::uint64_t MergeKey(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(left) << 20) | static_cast<std::uint64_t>(right);
  }
  static std::uint64_t HashMerge(std::uint64_t key) {
    const std::uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    return mixed ^ (mixed >> 32);
  }
  static std::uint64_t HashWord(std::string_view word);

  bool IsSound() const;

  std::uint64_t source_hash_ = 0, source_size_ = 0;
  std::uint64_t merge_mask_ = 0, word_mask_ = 0;
  std::size_t longest_word_ = 0;
  std::span<const std::uint32_t> token_offsets_;  // [vocab + 1]
  std::span<const char> token_bytes_;
  std::span<const std::uint8_t> flags_;          // [vocab]
  std::span<const std::int32_t> byte_ids_;       // [256]
  std::span<const std::uint64_t> merge_slots_;   // open addressing: key << 24 | rank
  std::span<const std::int32_t> merge_results_;  // [merges]
  std::span<const WordSlot> word_slots_;         // open addressing by HashWord
};

// Lays out the tables. `source_hash` and `source_size` describe the tokenizer.json; `file` is for messages.
// Throws InputError naming the field for an id or text used twice, a merge of unknown tokens, or a byte without
// a token.
std::vector<std::byte> BuildTokenImage(const TokenizerSpec& spec, std::uint64_t source_hash,
                                       std::uint64_t source_size, const std::string& file);

}  // namespace lockstep
