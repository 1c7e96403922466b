// Runs one layer's routed experts where the plan puts them: resident, streamed through staging slots, or on the CPU lane. This is where an
// expert is skipped, copied and computed; Combine sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fast/expert_store.h"
#include "fast/options.h"
#include "fast/pair_arrays.h"
#include "kernels/device/backend.h"

namespace lockstep::fast {

// A layer's (token, expert) pairs, as the host sees them.
struct ExpertBatch {
  int layer = 0;
  int experts = 0;
  kernels::ExpertFfnArgs args;  // everything but the jobs; device memory
  PairArrays pairs;             // host

  std::span<const std::int32_t> count_X() const { return {pairs.groups.count_X, static_cast<std::size_t>(experts)}; }
};

class ExpertLanes {
 public:
  ExpertLanes(kernels::Backend& backend, ExpertStore& store, const EngineOptions& options) : backend_(backend), store_(store), options_(options) {}

  // Computes every pair of the batch into batch.args.y, at the latest when the compute stream is done. Experts without a pair are not touched (zero_hit_skipping) or copied unused.
  void Run(kernels::Device& device, const ExpertBatch& batch);

 private:
  kernels::ExpertJob JobFor(const ExpertBatch& batch, const ExpertUse& use, const std::byte* blob) const;
  void RunResident(kernels::Device& device, const ExpertBatch& batch);
  void RunStreamed(kernels::Device& device, const ExpertBatch& batch);
  void RunOnCpu(kernels::Device& device, const ExpertBatch& batch);
  void GatherForCpu(kernels::Device& device, const ExpertBatch& batch);
  void ScatterFromCpu(kernels::Device& device, const ExpertBatch& batch);
  void AccountForUnused(kernels::Device& device, const ExpertBatch& batch);

  kernels::Backend& backend_;
  ExpertStore& store_;
  const EngineOptions& options_;
  // Of the running batch; kept, so that steady state allocates nothing.
  std::vector<ExpertUse> uses_;
  std::vector<kernels::ExpertJob> jobs_;
  std::vector<float> cpu_weight_;
  std::vector<std::uint16_t> cpu_x_, cpu_y_;
};

}  // namespace lockstep::fast
