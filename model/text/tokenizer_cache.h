// From a tokenizer.json to the tables of token_tables.h, through the binary cache. Format and places of the
// cache: docs/text.md.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "model/text/tokenizer.h"

namespace lockstep {

// What holds the bytes of an image: memory or a mapped file.
class TokenImage {
 public:
  virtual ~TokenImage() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

// The image of a tokenizer.json in memory. Throws InputError as ParseTokenizerJson and BuildTokenImage do.
std::unique_ptr<TokenImage> MakeTokenImage(std::string_view json, const std::string& file);

// The image of the tokenizer.json at `path`: mapped from the cache if one was made from a file of this hash and
// size, else made, and stored for the next time if some place can be written. A damaged cache counts as none.
std::unique_ptr<TokenImage> LoadTokenImage(const std::string& path, const TokenizerOptions& options);

}  // namespace lockstep
