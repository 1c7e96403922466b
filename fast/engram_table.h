// Reads Engram table rows (V4.1) from the mapped checkpoint. Which rows depends on token ids alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/checkpoint.h"
#include "model/text/engram_hash.h"

namespace lockstep::fast {

class EngramTable {
 public:
  static constexpr int kMaxNgram = 16;

  // Throws InputError when the token map cannot be had.
  explicit EngramTable(const Checkpoint& checkpoint);

  // The rows of Engram layer `index` for a token, widened to bf16 [columns * head_dim]. `recent`: its id and those of the tokens before it,
  // newest first, max_ngram_size of them or fewer at the start. Throws InputError naming the table row when a value is not finite.
  void Gather(int index, std::span<const std::int32_t> recent, std::uint16_t* out) const;

 private:
  const Checkpoint& checkpoint_;
  std::vector<std::int32_t> token_map_;
  std::int32_t pad_ = 0;
  std::vector<EngramHash> hashes_;
};

}  // namespace lockstep::fast
