// The binary cache of a tokenizer.json: the image of token_tables.h in a file. Format and places: docs/text.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "model/text/tokenizer.h"

namespace lockstep {

// What holds the bytes of an image: memory or a mapped file.
class TokenImage {
 public:
  virtual ~TokenImage() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

// The image of the tokenizer.json at `path`, mapped from the cache if one was made from a file of this hash and size, else built by
// `build` and, if some cache directory can be written, stored for the next time. A cache that is damaged counts as none.
std::unique_ptr<TokenImage> LoadTokenImage(const std::string& path, std::uint64_t source_hash, std::uint64_t source_size,
                                           const TokenizerOptions& options,
                                           const std::function<std::vector<std::byte>()>& build);

// An image in memory.
std::unique_ptr<TokenImage> HoldTokenImage(std::vector<std::byte> bytes);

}  // namespace lockstep
