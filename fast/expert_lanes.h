// Runs one layer's routed experts where the plan puts them: resident, streamed through staging slots, or on the CPU lane. This is where an
// expert is skipped, copied and computed; Combine sums.
#pragma once

#include <cstdint>
#include <vector>

#include "fast/expert_store.h"
#include "fast/options.h"
#include "kernels/device/backend.h"

namespace lockstep::fast {

// A layer's (token, expert) pairs, ordered by expert: expert e has pairs begin_X[e] .. begin_X[e] + count_X[e] - 1.
struct ExpertBatch {
  int layer = 0;
  std::vector<std::int64_t> count_X, begin_X;
  kernels::ExpertFfnArgs args;  // everything but the jobs; device memory
  std::int64_t tokens = 0;      // rows of args.x
  std::vector<std::int32_t> pair_token;  // host copies, for the CPU lane
  std::vector<float> pair_weight;
};

void RunExpertLanes(kernels::Backend& backend, kernels::Device& device, ExpertStore& store, const EngineOptions& options, const ExpertBatch& batch);

}  // namespace lockstep::fast
