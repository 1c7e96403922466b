#include "model/text/tokenizer_cache.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "model/error.h"
#include "model/safetensors.h"
#include "model/text/atomic_file.h"
#include "model/text/token_tables.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

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

// nullptr if there is no sound cache of this source.
std::unique_ptr<TokenImage> ReadCache(const fs::path& path, std::uint64_t source_hash, std::uint64_t source_size) {
  std::error_code missing;
  if (!fs::is_regular_file(path, missing)) return nullptr;
  try {
    auto image = std::make_unique<ImageInFile>(path.string());
    TokenTables tables;
    const bool is_ours = TokenTables::Open(image->bytes(), &tables) && tables.source_hash() == source_hash &&
                         tables.source_size() == source_size;
    return is_ours ? std::move(image) : nullptr;
  } catch (const InputError&) {
    return nullptr;  // removed or unreadable meanwhile
  }
}

// Where a cache of the file may lie, best first.
std::vector<fs::path> CachePlaces(const std::string& path, std::uint64_t source_hash, const TokenizerOptions& options) {
  if (!options.use_cache) return {};
  char name[64];
  std::snprintf(name, sizeof(name), "tokenizer-%016llx.lockstep", static_cast<unsigned long long>(source_hash));
  if (!options.cache_dir.empty()) return {fs::path(options.cache_dir) / name};
  std::vector<fs::path> places = {fs::absolute(path).parent_path() / "tokenizer.lockstep"};
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    places.push_back(fs::path(cache) / "lockstep" / name);
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    places.push_back(fs::path(home) / ".cache" / "lockstep" / name);
  }
  return places;
}

}  // namespace

std::unique_ptr<TokenImage> HoldTokenImage(std::vector<std::byte> bytes) {
  return std::make_unique<ImageInMemory>(std::move(bytes));
}

std::unique_ptr<TokenImage> LoadTokenImage(const std::string& path, std::uint64_t source_hash, std::uint64_t source_size,
                                           const TokenizerOptions& options,
                                           const std::function<std::vector<std::byte>()>& build) {
  const std::vector<fs::path> places = CachePlaces(path, source_hash, options);
  for (const fs::path& place : places) {
    if (auto image = ReadCache(place, source_hash, source_size)) return image;
  }
  auto image = HoldTokenImage(build());
  for (const fs::path& place : places) {
    if (WriteFileAtomically(place, image->bytes())) break;
  }
  return image;
}

}  // namespace lockstep
