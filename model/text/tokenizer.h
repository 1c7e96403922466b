// Text to ids and back: byte-level BPE as written in a Hugging Face tokenizer.json (DeepSeek V3, V4, V4.1).
// All const members may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A run of text for Encode. In a segment with parse_special added tokens (control tokens among them) become
// their ids; in one without, the same characters are ordinary text. Ordinary text of neighbouring segments is
// joined before it is split into words, because "}" + "</tool_result>" has other ids joined than apart.
struct TextSegment {
  std::string_view text;
  bool parse_special = false;
};

struct TokenizerOptions {
  // Read and write the binary cache (docs/text.md). A cache that cannot be read or written is no error.
  bool use_cache = true;
  // Where the cache lies. Empty: beside tokenizer.json, else $XDG_CACHE_HOME/lockstep or $HOME/.cache/lockstep,
  // and none at all for a file below 1 MiB.
  std::string cache_dir;
};

class Tokenizer {
 public:
  // Loads a tokenizer.json. Throws InputError naming file and field: missing, malformed, or a feature other
  // than byte-level BPE with the DeepSeek split patterns.
  static Tokenizer FromFile(const std::string& path, const TokenizerOptions& options = {});
  // Loads DIR/tokenizer.json.
  static Tokenizer FromDirectory(const std::string& dir, const TokenizerOptions& options = {});
  // Parses the text of a tokenizer.json; `file` is for messages. No cache.
  static Tokenizer FromJson(std::string_view json, const std::string& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Largest id plus one.
  int vocab_size() const;
  // XXH3 of the tokenizer.json it was made from.
  std::uint64_t source_hash() const;

  // Ids of `text`; no BOS is added. Any byte string encodes, and DecodeBytes gives the same bytes back: a
  // maximal ill-formed subpart of UTF-8 counts as one unassigned character. Callers that must refuse such input
  // use FindInvalidUtf8.
  std::vector<std::int32_t> Encode(std::string_view text, bool parse_special) const;
  std::vector<std::int32_t> EncodeOrdinary(std::string_view text) const { return Encode(text, false); }
  std::vector<std::int32_t> Encode(std::span<const TextSegment> segments) const;

  // Whether the id names a token. Ids below vocab_size() may be unused.
  bool HasToken(std::int32_t id) const;
  // The bytes that the token stands for; empty for an id without a token. Valid as long as the tokenizer lives.
  std::string_view TokenBytes(std::int32_t id) const;
  // The token as spelled in tokenizer.json (ordinary tokens: one character a byte, GPT-2's map); empty without
  // a token.
  std::string VocabularyString(std::int32_t id) const;
  // Cut out of the text before BPE when parse_special is on: every entry of added_tokens.
  bool IsAdded(std::int32_t id) const;
  // An added token marked "special": hidden by Decode with skip_special.
  bool IsSpecial(std::int32_t id) const;
  // The id of an added token by its exact text ("<｜User｜>"), special or not.
  std::optional<std::int32_t> SpecialId(std::string_view text) const;

  // Concatenated bytes of the ids; may be no valid UTF-8. Ids without a token add nothing.
  std::string DecodeBytes(std::span<const std::int32_t> ids, bool skip_special) const;
  // The same as valid UTF-8: each maximal ill-formed subpart becomes U+FFFD (as StreamDecoder does).
  std::string Decode(std::span<const std::int32_t> ids, bool skip_special) const;

 private:
  struct Tables;
  explicit Tokenizer(std::unique_ptr<Tables> tables);
  std::unique_ptr<Tables> tables_;
};

}  // namespace lockstep
