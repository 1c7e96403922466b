// Engram's token compression (V4.1): tokens whose normalized texts are equal share one id, and n-grams are
// hashed over these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/text/tokenizer.h"

namespace lockstep {

struct EngramTokenMap {
  std::vector<std::int32_t> compressed;  // [tokenizer.vocab_size()]; ids without a token: 0
  std::int32_t classes = 0;  // compressed ids are 0 .. classes - 1, in the order of their first token
};

// Class key of a token: its text normalized, or the text if nothing is left of it; tokens that are no whole
// characters stand alone.
EngramTokenMap BuildEngramTokenMap(const Tokenizer& tokenizer);

// compressed id of each id of the model's vocabulary [config.vocab_size].
//
// Read from DIR/engram_token_map.i32 (little-endian int32) if DIR/engram_token_map.json says that it was made
// from this DIR/tokenizer.json, or if there is no tokenizer.json; otherwise built from the tokenizer and stored
// there for the next time (a directory that cannot be written is no error). Ids beyond the tokenizer's map to
// the pad id: no text has them. Throws InputError naming the file if neither exists, or if size, range or
// number of classes disagree with the config.
std::vector<std::int32_t> LoadEngramTokenMap(const std::string& dir, const ModelConfig& config);

}  // namespace lockstep
