// The one interface that the server and the command line know: an engine and its sessions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"

namespace lockstep {

// One sequence. Not thread-safe; sessions of one engine may be used from one thread at a time.
class Session {
 public:
  virtual ~Session() = default;

  // Tokens processed so far; the next token appended has this position.
  virtual std::int64_t position() const = 0;

  // Processes ids[T] at positions position().. and returns the logits of the last `last_rows` of them, [last_rows, vocab] fp32;
  // 0 <= last_rows <= T. Throws InputError for an id outside the vocabulary or more tokens than
  // max_position_embeddings, before any state has changed.
  virtual std::vector<float> Append(std::span<const std::int32_t> ids, std::int64_t last_rows) = 0;

  // A copy of this session with its own state, at the same position.
  virtual std::unique_ptr<Session> Fork() const = 0;
};

// Throws InputError if an id is outside the vocabulary or the sequence would outgrow max_position_embeddings.
void CheckIds(std::span<const std::int32_t> ids, std::int64_t position, const ModelConfig& config);

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const ModelConfig& config() const = 0;
  virtual std::unique_ptr<Session> NewSession() = 0;
};

}  // namespace lockstep
