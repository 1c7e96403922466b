#include "model/engine.h"

#include <string>

#include "model/error.h"

namespace lockstep {

void CheckIds(std::span<const std::int32_t> ids, std::int64_t position, const ModelConfig& config) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocab_size) {
      throw InputError("token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) + " is outside the vocabulary of " +
                       std::to_string(config.vocab_size));
    }
  }
  const std::int64_t end = position + static_cast<std::int64_t>(ids.size());
  if (end > config.max_position_embeddings) {
    throw InputError("the sequence would reach " + std::to_string(end) + " tokens; max_position_embeddings of the model is " +
                     std::to_string(config.max_position_embeddings));
  }
}

}  // namespace lockstep
