#include "model/text/engram_map.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "model/error.h"
#include "model/json_text.h"
#include "model/safetensors.h"
#include "model/text/atomic_file.h"
#include "model/text/content_hash.h"
#include "model/text/unicode.h"
#include "model/text/utf8.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kReplacement = "\uFFFD";
constexpr std::string_view kKeptSpace = "\uE000";  // stands for a lone space while the ends are stripped

std::string CollapseBlanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::string collapsed;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_blank = kBlanks.find(text[i]) != std::string_view::npos;
    if (!is_blank) {
      collapsed += text[i];
    } else if (i == 0 || kBlanks.find(text[i - 1]) == std::string_view::npos) {
      collapsed += ' ';
    }
  }
  return collapsed;
}

std::string_view StripWhiteSpace(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (!IsWhiteSpace(c.code_point)) {
      begin = std::min(begin, i);
      end = i + c.length;
    }
    i += c.length;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::string NormalizeForEngram(std::string_view text) {
  std::string folded = CollapseBlanks(FoldForEngram(text));
  if (folded == " ") folded = kKeptSpace;
  std::string normalized(StripWhiteSpace(folded));
  for (std::size_t at; (at = normalized.find(kKeptSpace)) != std::string::npos;) {
    normalized.replace(at, kKeptSpace.size(), 1, ' ');
  }
  return normalized;
}

std::string ClassKey(const Tokenizer& tokenizer, std::int32_t id) {
  const std::string text = tokenizer.Decode(std::span(&id, 1), false);
  if (text.find(kReplacement) != std::string::npos) return tokenizer.VocabularyString(id);
  std::string normalized = NormalizeForEngram(text);
  return normalized.empty() ? text : normalized;
}

struct Paths {
  explicit Paths(const fs::path& dir)
      : tokenizer(dir / "tokenizer.json"),
        map(dir / "engram_token_map.i32"),
        origin(dir / "engram_token_map.json") {}
  fs::path tokenizer, map, origin;
};

std::string HexOf(std::uint64_t hash) {
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

// What engram_token_map.json says of a map made from a tokenizer. The map's own hash is there because the two
// files are written one after the other.
Json OriginOf(std::uint64_t tokenizer_hash, std::span<const std::byte> map) {
  return {{"format", 1}, {"tokenizer_xxh3", HexOf(tokenizer_hash)}, {"map_xxh3", HexOf(ContentHash(map))}};
}

bool IsMadeFrom(const Paths& paths, std::uint64_t tokenizer_hash) {
  if (!fs::exists(paths.map) || !fs::exists(paths.origin)) return false;
  const MappedFile map(paths.map.string());
  const MappedFile file(paths.origin.string());
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  try {
    return ParseJson(text, paths.origin.string()) == OriginOf(tokenizer_hash, map.bytes());
  } catch (const InputError&) {
    return false;  // damaged: made anew
  }
}

std::vector<std::int32_t> ReadMap(const std::string& path, const ModelConfig& config) {
  const MappedFile file(path);
  const auto vocab_size = static_cast<std::size_t>(config.vocab_size);
  std::vector<std::int32_t> map(vocab_size);
  if (file.bytes().size() != vocab_size * sizeof(std::int32_t)) {
    throw InputError(path + ": expected " + std::to_string(vocab_size) + " int32 (vocab_size), got " +
                     std::to_string(file.bytes().size()) + " bytes");
  }
  std::memcpy(map.data(), file.bytes().data(), file.bytes().size());
  for (std::size_t id = 0; id < vocab_size; ++id) {
    if (map[id] >= 0 && map[id] < config.engram.compressed_vocab_size) continue;
    throw InputError(path + ": id " + std::to_string(id) +
                     ": expected a value from 0 to engram_compressed_vocab_size - 1 = " +
                     std::to_string(config.engram.compressed_vocab_size - 1) + ", got " +
                     std::to_string(map[id]));
  }
  return map;
}

std::vector<std::int32_t> BuildMap(const Paths& paths, const std::string& dir, const ModelConfig& config) {
  const Tokenizer tokenizer = Tokenizer::FromDirectory(dir);
  EngramTokenMap built = BuildEngramTokenMap(tokenizer);
  const std::string file = paths.tokenizer.string();
  if (built.classes != config.engram.compressed_vocab_size) {
    throw InputError(file + ": expected " + std::to_string(config.engram.compressed_vocab_size) +
                     " classes of tokens (engram_compressed_vocab_size), got " + std::to_string(built.classes));
  }
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw InputError(file + ": expected ids below vocab_size " + std::to_string(config.vocab_size) + ", got " +
                     std::to_string(tokenizer.vocab_size() - 1));
  }
  built.compressed.resize(static_cast<std::size_t>(config.vocab_size), config.engram.pad_id);
  const auto bytes = std::as_bytes(std::span(built.compressed));
  const std::string origin = OriginOf(tokenizer.source_hash(), bytes).dump() + "\n";
  if (WriteFileAtomically(paths.map, bytes))
    WriteFileAtomically(paths.origin, std::as_bytes(std::span(origin)));
  return built.compressed;
}

}  // namespace

EngramTokenMap BuildEngramTokenMap(const Tokenizer& tokenizer) {
  EngramTokenMap map;
  map.compressed.resize(static_cast<std::size_t>(tokenizer.vocab_size()));
  std::unordered_map<std::string, std::int32_t> class_of;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.HasToken(id)) continue;
    const auto [known, is_new] = class_of.emplace(ClassKey(tokenizer, id), map.classes);
    if (is_new) ++map.classes;
    map.compressed[static_cast<std::size_t>(id)] = known->second;
  }
  return map;
}

std::vector<std::int32_t> LoadEngramTokenMap(const std::string& dir, const ModelConfig& config) {
  const Paths paths{fs::path(dir)};
  if (!fs::exists(paths.tokenizer)) {
    if (!fs::exists(paths.map)) throw InputError(dir + ": expected tokenizer.json or engram_token_map.i32");
    return ReadMap(paths.map.string(), config);
  }
  const std::uint64_t tokenizer_hash = ContentHash(MappedFile(paths.tokenizer.string()).bytes());
  if (IsMadeFrom(paths, tokenizer_hash)) return ReadMap(paths.map.string(), config);
  return BuildMap(paths, dir, config);
}

}  // namespace lockstep
