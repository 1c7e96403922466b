#include "model/text/token_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <unordered_map>

#include "model/error.h"
#include "model/json_text.h"
#include "model/text/bpe.h"
#include "model/text/content_hash.h"
#include "model/text/utf8.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMagic = 0x31304B4F544B434Cu;  // "LCKTOK01", little-endian: changes with the layout
constexpr std::size_t kAlignment = 16;

enum Section { kOffsets, kBytes, kFlags, kByteIds, kMergeSlots, kMergeResults, kWordSlots, kSectionCount };

struct Header {
  std::uint64_t magic;
  std::uint64_t body_hash;  // XXH3 of everything after this field
  std::uint64_t source_hash, source_size;
  std::uint64_t longest_word;
  std::uint64_t section_sizes[kSectionCount];  // bytes
};

constexpr std::size_t Aligned(std::size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }
constexpr std::size_t kHashedFrom = offsetof(Header, source_hash);
constexpr std::size_t kBodyOffset = Aligned(sizeof(Header));

template <typename T>
bool TakeSection(std::span<const std::byte> image, std::uint64_t bytes, std::size_t* offset,
                 std::span<const T>* section) {
  if (bytes > image.size() || Aligned(bytes) > image.size() - *offset || bytes % sizeof(T) != 0) return false;
  *section = {reinterpret_cast<const T*>(image.data() + *offset), bytes / sizeof(T)};
  *offset += Aligned(bytes);
  return true;
}

std::size_t TableSizeFor(std::size_t entries) { return std::bit_ceil(2 * entries + 2); }

}  // namespace

std::uint64_t TokenTables::HashWord(std::string_view word) {
  std::uint64_t hash = word.size();
  const char* p = word.data();
  std::size_t left = word.size();
  for (; left >= 8; left -= 8, p += 8) {
    std::uint64_t lane;
    std::memcpy(&lane, p, 8);
    hash = std::rotl((hash ^ lane) * 0x9E3779B97F4A7C15u, 29);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, p, left);
  hash = (hash ^ tail) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93u;
  return hash ^ (hash >> 32);
}

std::int32_t TokenTables::WholePiece(std::string_view piece) const {
  if (piece.size() > longest_word_) return -1;
  const std::uint64_t hash = HashWord(piece);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::uint64_t slot = hash;; ++slot) {
    const WordSlot& entry = word_slots_[slot & word_mask_];
    if (entry.id < 0) return -1;
    if (entry.tag == tag && Bytes(entry.id) == piece) return entry.id;
  }
}

bool TokenTables::Open(std::span<const std::byte> image, TokenTables* tables) {
  Header header;
  if (image.size() < kBodyOffset) return false;
  std::memcpy(&header, image.data(), sizeof(header));
  if (header.magic != kMagic || header.body_hash != ContentHash(image.subspan(kHashedFrom))) return false;
  TokenTables t;
  t.source_hash_ = header.source_hash;
  t.source_size_ = header.source_size;
  t.longest_word_ = header.longest_word;
  const std::uint64_t* sizes = header.section_sizes;
  std::size_t offset = kBodyOffset;
  const bool fits = TakeSection(image, sizes[kOffsets], &offset, &t.token_offsets_) &&
                    TakeSection(image, sizes[kBytes], &offset, &t.token_bytes_) &&
                    TakeSection(image, sizes[kFlags], &offset, &t.flags_) &&
                    TakeSection(image, sizes[kByteIds], &offset, &t.byte_ids_) &&
                    TakeSection(image, sizes[kMergeSlots], &offset, &t.merge_slots_) &&
                    TakeSection(image, sizes[kMergeResults], &offset, &t.merge_results_) &&
                    TakeSection(image, sizes[kWordSlots], &offset, &t.word_slots_);
  if (!fits || offset != image.size()) return false;
  t.merge_mask_ = t.merge_slots_.size() - 1;
  t.word_mask_ = t.word_slots_.size() - 1;
  if (!t.IsSound()) return false;
  *tables = t;
  return true;
}

// The image may come from a file that someone else wrote: every index is checked once here, and none when it is
// used.
bool TokenTables::IsSound() const {
  const auto is_id = [this](std::int32_t id) { return IsValidId(id); };
  const auto has_room = [](auto slots, auto is_empty) {
    return std::has_single_bit(slots.size()) && std::ranges::any_of(slots, is_empty);
  };
  const auto is_merge = [this](std::uint64_t slot) {
    return slot == kEmptySlot || (slot & kRankMask) < merge_results_.size();
  };
  return flags_.size() < static_cast<std::size_t>(kMaxVocabSize) + 1 &&
         token_offsets_.size() == flags_.size() + 1 && token_offsets_.back() == token_bytes_.size() &&
         std::ranges::is_sorted(token_offsets_) && byte_ids_.size() == 256 &&
         std::ranges::all_of(byte_ids_, is_id) && std::ranges::all_of(merge_results_, is_id) &&
         has_room(merge_slots_, [](std::uint64_t slot) { return slot == kEmptySlot; }) &&
         std::ranges::all_of(merge_slots_, is_merge) &&
         has_room(word_slots_, [](const WordSlot& slot) { return slot.id < 0; }) &&
         std::ranges::all_of(word_slots_, [&](const WordSlot& slot) { return slot.id < 0 || is_id(slot.id); });
}

// Fills the tables from a spec, then copies them into one block.
class TokenImageBuilder {
 public:
  TokenImageBuilder(const TokenizerSpec& spec, const std::string& file) : spec_(spec), file_(file) {}

  std::vector<std::byte> Build(std::uint64_t source_hash, std::uint64_t source_size) {
    AddVocabulary();
    AddAddedTokens();
    LayOutTokens();
    MapBytes();
    AddMerges();
    word_slots_.assign(TableSizeFor(0), {0, -1});
    std::vector<std::byte> without_words = Assemble(source_hash, source_size);
    AddWords(without_words);
    return Assemble(source_hash, source_size);
  }

 private:
  struct Token {
    std::string bytes;
    std::uint8_t flags = 0;
  };

  [[noreturn]] void Fail(const std::string& field, const std::string& expected) const {
    throw InputError(file_ + ": " + field + ": expected " + expected);
  }

  // The bytes that a vocabulary text stands for: its characters through the byte map, or itself if one is not
  // in the map.
  Token Spell(const std::string& text) const {
    static const std::unordered_map<char32_t, char> byte_of = [] {
      std::unordered_map<char32_t, char> map;
      for (std::size_t byte = 0; byte < 256; ++byte) map[ByteCharacters()[byte]] = static_cast<char>(byte);
      return map;
    }();
    Token token{{}, kTokenPresent};
    for (std::size_t i = 0; i < text.size();) {
      const Utf8Char c = DecodeUtf8(text, i);
      const auto byte = byte_of.find(c.code_point);
      if (byte == byte_of.end()) return {text, kTokenPresent | kTokenSpelledRaw};
      token.bytes += byte->second;
      i += c.length;
    }
    return token;
  }

  Token& Slot(std::int32_t id) {
    if (static_cast<std::size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<std::size_t>(id) + 1);
    return tokens_[static_cast<std::size_t>(id)];
  }

  void AddVocabulary() {
    ids_.reserve(spec_.vocabulary.size() + spec_.added.size());
    for (const VocabularyEntry& entry : spec_.vocabulary) {
      Token& token = Slot(entry.id);
      if (token.flags != 0) Fail("model.vocab", "each id once, got " + std::to_string(entry.id) + " twice");
      if (!ids_.emplace(entry.text, entry.id).second)
        Fail("model.vocab", "each text once, got \"" + Printable(entry.text) + "\" twice");
      token = Spell(entry.text);
    }
  }

  void AddAddedTokens() {
    for (std::size_t i = 0; i < spec_.added.size(); ++i) {
      const AddedToken& added = spec_.added[i];
      const std::string field = "added_tokens[" + std::to_string(i) + "]";
      const auto [known, is_new] = ids_.emplace(added.content, added.id);
      if (known->second != added.id)
        Fail(field + ".id",
             std::to_string(known->second) + ", where \"" + Printable(added.content) + "\" has it");
      Token& token = Slot(added.id);
      const bool is_taken = is_new ? token.flags != 0 : (token.flags & kTokenAdded) != 0;
      if (is_taken) Fail(field + ".id", "an id of its own, got " + std::to_string(added.id));
      token = Spell(added.content);
      token.flags |=
          kTokenAdded | (added.special ? kTokenSpecial : 0) | (added.normalized ? kTokenNormalized : 0);
    }
  }

  void LayOutTokens() {
    offsets_.push_back(0);
    for (const Token& token : tokens_) {
      bytes_.insert(bytes_.end(), token.bytes.begin(), token.bytes.end());
      offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
      flags_.push_back(token.flags);
    }
  }

  void MapBytes() {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::string character;
      AppendUtf8(ByteCharacters()[byte], &character);
      const auto found = ids_.find(character);
      if (found == ids_.end())
        Fail("model.vocab", "a token for each byte, none for byte " + std::to_string(byte));
      byte_ids_.push_back(found->second);
    }
  }

  std::int32_t MergeId(std::string_view text, std::size_t rank) const {
    const auto found = ids_.find(text);
    if (found == ids_.end())
      Fail("model.merges[" + std::to_string(rank) + "]",
           "tokens of model.vocab, got \"" + Printable(text) + "\"");
    return found->second;
  }

  void AddMerges() {
    merge_slots_.assign(TableSizeFor(spec_.merges.size()), TokenTables::kEmptySlot);
    const std::uint64_t mask = merge_slots_.size() - 1;
    std::string merged;
    for (std::size_t rank = 0; rank < spec_.merges.size(); ++rank) {
      const Merge& merge = spec_.merges[rank];
      merged.assign(merge.left).append(merge.right);
      merge_results_.push_back(MergeId(merged, rank));
      const std::uint64_t key = TokenTables::MergeKey(MergeId(merge.left, rank), MergeId(merge.right, rank));
      std::uint64_t slot = TokenTables::HashMerge(key) & mask;
      while (merge_slots_[slot] != TokenTables::kEmptySlot &&
             merge_slots_[slot] >> TokenTables::kRankBits != key) {
        slot = (slot + 1) & mask;
      }
      // A merge listed again takes the later rank, as in the `tokenizers` library.
      merge_slots_[slot] = (key << TokenTables::kRankBits) | rank;
    }
  }

  // Pieces of several bytes that encode to the one token that they spell. Not all tokens do: merges may lead
  // elsewhere.
  void AddWords(const std::vector<std::byte>& image) {
    TokenTables tables;
    LOCKSTEP_CHECK(TokenTables::Open(image, &tables));
    word_slots_.assign(TableSizeFor(tokens_.size()), {0, -1});
    const std::uint64_t mask = word_slots_.size() - 1;
    std::vector<std::int32_t> ids;
    for (const std::int32_t id : merge_results_) {
      const std::string_view word = tables.Bytes(id);
      ids.clear();
      MergePiece(tables, word, &ids);
      if (ids.size() != 1) continue;
      const std::uint64_t hash = TokenTables::HashWord(word);
      std::uint64_t slot = hash & mask;
      while (word_slots_[slot].id >= 0 && word_slots_[slot].id != ids[0]) slot = (slot + 1) & mask;
      word_slots_[slot] = {static_cast<std::uint32_t>(hash >> 32), ids[0]};
      longest_word_ = std::max(longest_word_, word.size());
    }
  }

  template <typename T>
  static void AppendSection(const std::vector<T>& section, std::uint64_t* size, std::vector<std::byte>* image) {
    *size = section.size() * sizeof(T);
    const std::size_t offset = image->size();
    image->resize(Aligned(offset + *size));
    if (*size > 0) std::memcpy(image->data() + offset, section.data(), *size);
  }

  std::vector<std::byte> Assemble(std::uint64_t source_hash, std::uint64_t source_size) const {
    Header header = {kMagic, 0, source_hash, source_size, longest_word_, {}};
    std::vector<std::byte> image(kBodyOffset);
    AppendSection(offsets_, &header.section_sizes[kOffsets], &image);
    AppendSection(bytes_, &header.section_sizes[kBytes], &image);
    AppendSection(flags_, &header.section_sizes[kFlags], &image);
    AppendSection(byte_ids_, &header.section_sizes[kByteIds], &image);
    AppendSection(merge_slots_, &header.section_sizes[kMergeSlots], &image);
    AppendSection(merge_results_, &header.section_sizes[kMergeResults], &image);
    AppendSection(word_slots_, &header.section_sizes[kWordSlots], &image);
    std::memcpy(image.data(), &header, sizeof(header));
    header.body_hash = ContentHash(std::span(image).subspan(kHashedFrom));
    std::memcpy(image.data(), &header, sizeof(header));
    return image;
  }

  const TokenizerSpec& spec_;
  const std::string& file_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // texts of spec_
  std::vector<Token> tokens_;
  std::vector<std::uint32_t> offsets_;
  std::vector<char> bytes_;
  std::vector<std::uint8_t> flags_;
  std::vector<std::int32_t> byte_ids_;
  std::vector<std::uint64_t> merge_slots_;
  std::vector<std::int32_t> merge_results_;
  std::vector<TokenTables::WordSlot> word_slots_;
  std::size_t longest_word_ = 0;
};

std::vector<std::byte> BuildTokenImage(const TokenizerSpec& spec, std::uint64_t source_hash,
                                       std::uint64_t source_size, const std::string& file) {
  return TokenImageBuilder(spec, file).Build(source_hash, source_size);
}

}  // namespace lockstep
