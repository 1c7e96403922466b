// The greedy choice of docs/numerics.md section 7.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "model/error.h"

namespace lockstep {

struct GreedyChoice {
  std::int32_t id = 0;
  float margin = std::numeric_limits<float>::infinity();  // largest logit minus the second largest
};

// The first of the largest of logits[V], V >= 1. Throws InputError if one is NaN.
inline GreedyChoice ChooseGreedy(std::span<const float> logits_V) {
  GreedyChoice choice;
  float best = logits_V[0], second = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits_V.size(); ++i) {
    const float value = logits_V[i];
    if (std::isnan(value)) throw InputError("head: logit " + std::to_string(i) + " is NaN");
    if (i == 0) continue;
    if (value > best) {
      second = best;
      best = value;
      choice.id = static_cast<std::int32_t>(i);
    } else if (value > second) {
      second = value;
    }
  }
  choice.margin = best - second;
  return choice;
}

}  // namespace lockstep
