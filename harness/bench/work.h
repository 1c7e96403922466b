// How much work a run of a model cannot avoid, whatever engine runs it: bytes read, weights decoded, operations. From shapes alone.
#pragma once

#include <cstdint>

#include "harness/bench/rates.h"
#include "model/checkpoint.h"

namespace lockstep::bench {

struct Work {
  double bytes = 0;         // of weights and KV state, each read once
  double mul1_weights = 0;  // EXL3 weights decoded once
  double mcg_weights = 0;   // the same, mcg and 3inst
  double flops = 0;
};

// One decode step of `batch` sequences at `context` tokens. Which experts sequences share is taken from independent, equally likely picks.
Work DecodeWork(const Checkpoint& checkpoint, std::int64_t context, std::int64_t batch);

// A prompt of `tokens` tokens after `prefix`, with V4.1's exact tail: layers after the last kv source run only for the positions that reach
// the last logits. Every matrix is decoded once.
Work PromptWork(const Checkpoint& checkpoint, std::int64_t prefix, std::int64_t tokens);

// The least time that the work takes, and what binds it.
struct Limit {
  double seconds = 0;
  const char* bound = "";
};
// `streamed_bytes`: copied to the device in the course of the run, beside the rest.
Limit LimitOf(const Work& work, double streamed_bytes, const Rates& rates);

}  // namespace lockstep::bench
