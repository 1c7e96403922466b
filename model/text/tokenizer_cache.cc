#include "model/text/tokenizer_cache.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "model/error.h"
#include "model/safetensors.h"
#include "model/text/atomic_file.h"
#include "model/text/content_hash.h"
#include "model/text/token_tables.h"
#include "model/text/tokenizer_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Parsing a smaller file takes a few milliseconds; it gets no cache unless the options name a directory.
constexpr std::size_t kSmallestCached = std::size_t{1} << 20;

class ImageInMemory : public TokenImage {
 public:
  explicit ImageInMemory(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class ImageInFile : public TokenImage {
 public:
  explicit ImageInFile(const std::string& path) : file_(path) {}
  std::span<const std::byte> bytes() const override { return file_.bytes(); }

 private:
  MappedFile file_;
};

// A tokenizer.json and its hash.
struct Source {
  Source(std::string_view text, std::string name)
      : json(text), file(std::move(name)), hash(ContentHash(std::as_bytes(std::span(text)))) {}

  std::string_view json;
  std::string file;
  std::uint64_t hash;
};

std::unique_ptr<TokenImage> Make(const Source& source) {
  const TokenizerSpec spec = ParseTokenizerJson(source.json, source.file);
  return std::make_unique<ImageInMemory>(BuildTokenImage(spec, source.hash, source.json.size(), source.file));
}

// nullptr if there is no sound cache of this source.
std::unique_ptr<TokenImage> ReadCache(const fs::path& path, const Source& source) {
  std::error_code missing;
  if (!fs::is_regular_file(path, missing)) return nullptr;
  try {
    auto image = std::make_unique<ImageInFile>(path.string());
    TokenTables tables;
    const bool is_ours = TokenTables::Open(image->bytes(), &tables) && tables.source_hash() == source.hash &&
                         tables.source_size() == source.json.size();
    return is_ours ? std::move(image) : nullptr;
  } catch (const InputError&) {
    return nullptr;  // removed or unreadable meanwhile
  }
}

// Where a cache of the file may lie, best first.
std::vector<fs::path> CachePlaces(const Source& source, const TokenizerOptions& options) {
  if (!options.use_cache) return {};
  char name[64];
  std::snprintf(name, sizeof(name), "tokenizer-%016llx.lockstep", static_cast<unsigned long long>(source.hash));
  if (!options.cache_dir.empty()) return {fs::path(options.cache_dir) / name};
  if (source.json.size() < kSmallestCached) return {};
  std::vector<fs::path> places = {fs::path(source.file).parent_path() / "tokenizer.lockstep"};
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    places.push_back(fs::path(cache) / "lockstep" / name);
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    places.push_back(fs::path(home) / ".cache" / "lockstep" / name);
  }
  return places;
}

}  // namespace

std::unique_ptr<TokenImage> MakeTokenImage(std::string_view json, const std::string& file) {
  return Make(Source(json, file));
}

std::unique_ptr<TokenImage> LoadTokenImage(const std::string& path, const TokenizerOptions& options) {
  const MappedFile file(path);
  const Source source({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
  const std::vector<fs::path> places = CachePlaces(source, options);
  for (const fs::path& place : places) {
    if (auto image = ReadCache(place, source)) return image;
  }
  auto image = Make(source);
  for (const fs::path& place : places) {
    if (WriteFileAtomically(place, image->bytes())) break;
  }
  return image;
}

}  // namespace lockstep
