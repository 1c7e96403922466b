// How a request's tokens are chosen. Greedy at temperature 0, else drawn with a randomness that depends on the seed and the position alone, so
// that the same seed gives the same tokens whatever else runs. kernels/sampling draws; penalties, which change logits, are the host's.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/sampling/sampling.h"

namespace lockstep::fast {

struct SamplingParams {
  float temperature = 0.0f;  // 0: the largest logit, smallest id among equals
  float top_p = 1.0f;        // keep the smallest set of best tokens whose probability reaches it
  int top_k = 0;             // keep so many best tokens; 0: all
  float min_p = 0.0f;        // drop tokens below min_p times the best one's probability
  float repetition_penalty = 1.0f;  // divides positive and multiplies negative logits of tokens in `history`
  float presence_penalty = 0.0f;    // subtracted once for tokens in the generated part of `history`
  float frequency_penalty = 0.0f;   // subtracted for each time
  std::uint64_t seed = 0;
};

// Throws InputError naming the field that is out of range.
void CheckSampling(const SamplingParams& params);

// Whether logits must be changed before a token is drawn from them.
bool HasPenalties(const SamplingParams& params);

// How the token at `position` is drawn.
kernels::SamplingRow DrawAt(const SamplingParams& params, std::int64_t position);

// The token at `position` from logits on the host, penalties included; -1 if one is not finite. `history`: all tokens so far, of which the last
// `generated` were chosen.
std::int32_t SampleToken(std::span<const float> logits_V, const SamplingParams& params, std::span<const std::int32_t> history,
                         std::int64_t generated, std::int64_t position);

}  // namespace lockstep::fast
