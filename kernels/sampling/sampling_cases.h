// Rows of logits and ways to draw from them that tests and benchmark share.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace lockstep::kernels {

// Like a language model's: most far below a few. `step` > 0 rounds them to multiples of it, so that many are equal.
inline std::vector<float> ModelLogits(std::int64_t vocab, unsigned seed, float step = 0.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  for (float& logit : logits) {
    logit = normal(random);
    if (random() % 512 == 0) logit += 9.0f;
    if (step > 0.0f) logit = std::round(logit / step) * step;
  }
  return logits;
}

// Names and ways: greedy, the model cards' setting, and each limit alone and together.
inline std::vector<std::pair<std::string, SamplingRow>> SamplingWays() {
  return {{"greedy", {}},
          {"t1", {.temperature = 1.0f}},
          {"hot", {.temperature = 100.0f}},
          {"cold", {.temperature = 1e-4f}},
          {"top_p", {.temperature = 1.0f, .top_p = 0.95f}},
          {"top_k", {.temperature = 0.7f, .top_k = 40}},
          {"min_p", {.temperature = 1.5f, .min_p = 0.05f}},
          {"all", {.temperature = 1.2f, .top_p = 0.5f, .min_p = 0.001f, .top_k = 200}}};
}

}  // namespace lockstep::kernels
