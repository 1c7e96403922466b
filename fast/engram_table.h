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
  // Throws InputError when the token map cannot be had.
  explicit EngramTable(const Checkpoint& checkpoint);

  // The rows of Engram layer `index` for the token at `position` of a sequence with those ids, widened to bf16 [columns * head_dim].
  // Throws InputError naming the table row when a value is not finite.
  void Gather(int index, std::span<const std::int32_t> ids, std::int64_t position, std::uint16_t* out) const;

 private:
  const Checkpoint& checkpoint_;
  std::vector<std::int32_t> token_map_;
  std::int32_t pad_ = 0;
  std::vector<EngramHash> hashes_;
};

}  // namespace lockstep::fast
