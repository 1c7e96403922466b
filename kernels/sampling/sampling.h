// A token from a row of logits. Weights are integers, so that their sums have no order and every implementation draws the same token.
// Contract: docs/numerics.md section 6, Sampling.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/contract/cpu_isa.h"
#include "kernels/device/stream.h"

namespace lockstep::kernels {

// How a row's token is drawn. All zero: the largest logit, the smallest id among equals.
struct SamplingRow {
  float temperature = 0.0f;
  float top_p = 1.0f;       // keep the shortest run of best tokens whose weight reaches this share; 1: all
  float min_p = 0.0f;       // drop tokens below this share of the best one's probability
  std::int32_t top_k = 0;   // keep so many best tokens; 0: all
  std::uint64_t draw = 0;   // below 2^53, uniform
};

struct SampleArgs {
  const float* logits_TV = nullptr;
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  const SamplingRow* row_T = nullptr;  // device
  std::int32_t* out_T = nullptr;       // -1: a logit is not finite
};

// The CPU kernel's row, for logits that the host has changed.
std::int32_t SampleRow(std::span<const float> logits_V, const SamplingRow& row);

Kernel<SampleArgs> CpuSample(Isa isa);

}  // namespace lockstep::kernels
