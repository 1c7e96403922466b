#include "model/text/tokenizer.h"

#include "model/error.h"
#include "model/text/added_tokens.h"
#include "model/text/bpe.h"
#include "model/text/pre_tokenizer.h"
#include "model/text/token_tables.h"
#include "model/text/tokenizer_cache.h"
#include "model/text/utf8.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxTextBytes = (std::size_t{1} << 31) - 1;

TokenTables OpenTables(const TokenImage& image) {
  TokenTables tables;
  LOCKSTEP_CHECK(TokenTables::Open(image.bytes(), &tables));
  return tables;
}

}  // namespace

struct Tokenizer::Tables {
  explicit Tables(std::unique_ptr<TokenImage> held)
      : image(std::move(held)), tables(OpenTables(*image)), added(tables) {}

  void EncodeWords(std::string_view text, std::vector<std::int32_t>* ids) const {
    PieceScanner scanner(text);
    std::string_view piece;
    while (scanner.Next(&piece)) EncodePiece(tables, piece, ids);
  }

  std::unique_ptr<TokenImage> image;
  TokenTables tables;
  AddedTokens added;
};

Tokenizer::Tokenizer(std::unique_ptr<Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::FromFile(const std::string& path, const TokenizerOptions& options) {
  return Tokenizer(std::make_unique<Tables>(LoadTokenImage(path, options)));
}

Tokenizer Tokenizer::FromDirectory(const std::string& dir, const TokenizerOptions& options) {
  return FromFile(dir + "/tokenizer.json", options);
}

Tokenizer Tokenizer::FromJson(std::string_view json, const std::string& file) {
  return Tokenizer(std::make_unique<Tables>(MakeTokenImage(json, file)));
}

int Tokenizer::vocab_size() const { return tables_->tables.vocab_size(); }
std::uint64_t Tokenizer::source_hash() const { return tables_->tables.source_hash(); }

std::vector<std::int32_t> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  const TextSegment segment{text, parse_special};
  return Encode(std::span(&segment, 1));
}

std::vector<std::int32_t> Tokenizer::Encode(std::span<const TextSegment> segments) const {
  std::vector<TextPart> parts;
  std::size_t bytes = 0;
  for (const TextSegment& segment : segments) {
    bytes += segment.text.size();
    if (segment.parse_special) {
      tables_->added.Split(segment.text, &parts);
    } else if (!segment.text.empty()) {
      parts.push_back({segment.text});
    }
  }
  if (bytes > kMaxTextBytes)
    throw InputError("text: expected fewer than 2^31 bytes, got " + std::to_string(bytes));

  std::vector<std::int32_t> ids;
  ids.reserve(bytes / 4);
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].id >= 0) {
      ids.push_back(parts[i].id);
      continue;
    }
    std::string_view text = parts[i].text;
    if (i + 1 < parts.size() && parts[i + 1].id < 0) {
      joined = text;
      while (i + 1 < parts.size() && parts[i + 1].id < 0) joined += parts[++i].text;
      text = joined;
    }
    tables_->EncodeWords(text, &ids);
  }
  return ids;
}

bool Tokenizer::HasToken(std::int32_t id) const { return (tables_->tables.Flags(id) & kTokenPresent) != 0; }
std::string_view Tokenizer::TokenBytes(std::int32_t id) const { return tables_->tables.Bytes(id); }
std::string Tokenizer::VocabularyString(std::int32_t id) const { return SpellToken(tables_->tables, id); }
bool Tokenizer::IsAdded(std::int32_t id) const { return (tables_->tables.Flags(id) & kTokenAdded) != 0; }
bool Tokenizer::IsSpecial(std::int32_t id) const { return (tables_->tables.Flags(id) & kTokenSpecial) != 0; }
std::optional<std::int32_t> Tokenizer::SpecialId(std::string_view text) const {
  return tables_->added.Find(text);
}

std::string Tokenizer::DecodeBytes(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!(skip_special && IsSpecial(id))) bytes += TokenBytes(id);
  }
  return bytes;
}

std::string Tokenizer::Decode(std::span<const std::int32_t> ids, bool skip_special) const {
  return ReplaceInvalidUtf8(DecodeBytes(ids, skip_special));
}

}  // namespace lockstep
