#include "fast/expert_lanes.h"

#include <algorithm>
#include <utility>

namespace lockstep::fast {
namespace {

using kernels::Device;
using kernels::ExpertFfnArgs;
using kernels::ExpertJob;

ExpertJob JobFor(const ExpertStore& store, const ExpertBatch& batch, const ExpertUse& use, const std::byte* blob) {
  return {&store.spec(batch.layer, use.expert), blob, batch.begin_X[static_cast<std::size_t>(use.expert)], use.rows};
}

void RunJobs(Device& device, const ExpertBatch& batch, const std::vector<ExpertJob>& jobs) {
  if (jobs.empty()) return;
  ExpertFfnArgs args = batch.args;
  args.jobs = jobs.data();
  args.num_jobs = static_cast<std::int64_t>(jobs.size());
  device.kernels().expert_ffn(device.compute(), args);
}

// Copies of the next experts run beside the computation of the last: slot i is refilled only after what used it is done.
void RunStreamed(Device& device, ExpertStore& store, const ExpertBatch& batch, const std::vector<ExpertUse>& uses) {
  int slot = 0;
  for (const ExpertUse& use : uses) {
    if (use.lane != Lane::kStreamed) continue;
    device.WaitFor(device.copy(), device.compute());
    const std::byte* blob = store.Stage(batch.layer, use.expert, slot);
    device.WaitFor(device.compute(), device.copy());
    RunJobs(device, batch, {JobFor(store, batch, use, blob)});
    slot = (slot + 1) % store.staging_slots();
  }
}

// Rows out, host kernels, results back. Only the pairs of the CPU lane's experts travel.
void RunOnCpu(kernels::Backend& backend, Device& device, ExpertStore& store, const ExpertBatch& batch, const std::vector<ExpertUse>& uses) {
  const auto hidden = static_cast<std::size_t>(batch.args.hidden);
  std::vector<ExpertJob> jobs;
  std::vector<float> weights;
  std::vector<std::uint16_t> x;
  for (const ExpertUse& use : uses) {
    if (use.lane != Lane::kCpu) continue;
    ExpertJob job = JobFor(store, batch, use, store.blob(batch.layer, use.expert));
    const std::int64_t device_begin = std::exchange(job.begin, static_cast<std::int64_t>(weights.size()));
    for (std::int64_t p = device_begin; p < device_begin + use.rows; ++p) {
      weights.push_back(batch.pair_weight[static_cast<std::size_t>(p)]);
      x.resize(x.size() + hidden);
      const std::int64_t token = batch.pair_token[static_cast<std::size_t>(p)];
      device.CopyOut(device.compute(), reinterpret_cast<std::byte*>(x.data() + x.size() - hidden),
                     reinterpret_cast<const std::byte*>(batch.args.x + token * batch.args.hidden), hidden * sizeof(std::uint16_t));
    }
    jobs.push_back(job);
  }
  if (jobs.empty()) return;
  device.Synchronize(device.compute());
  std::vector<std::uint16_t> y(x.size());
  std::int32_t overflow = 0;
  ExpertFfnArgs args = batch.args;
  args.jobs = jobs.data();
  args.num_jobs = static_cast<std::int64_t>(jobs.size());
  args.x = x.data();
  args.token = nullptr;
  args.weight = weights.data();
  args.y = y.data();
  args.overflow = &overflow;
  backend.host_kernels().expert_ffn(backend.host_stream(), args);
  std::size_t row = 0;
  for (const ExpertUse& use : uses) {
    if (use.lane != Lane::kCpu) continue;
    const auto begin = static_cast<std::size_t>(batch.begin_X[static_cast<std::size_t>(use.expert)]), rows = static_cast<std::size_t>(use.rows);
    device.CopyIn(device.compute(), reinterpret_cast<std::byte*>(batch.args.y + begin * hidden),
                  reinterpret_cast<const std::byte*>(y.data() + row * hidden), rows * hidden * sizeof(std::uint16_t));
    row += rows;
  }
  if (overflow) {
    device.CopyIn(device.compute(), reinterpret_cast<std::byte*>(batch.args.overflow), reinterpret_cast<const std::byte*>(&overflow), sizeof(overflow));
  }
  device.Synchronize(device.compute());
}

// Without zero-hit skipping every expert that is not resident crosses the link, as engines without a plan do.
void CopyUnused(Device& device, ExpertStore& store, const ExpertBatch& batch) {
  for (std::size_t e = 0; e < batch.count_X.size(); ++e) {
    if (batch.count_X[e] > 0 || store.resident(batch.layer, static_cast<int>(e))) continue;
    device.WaitFor(device.copy(), device.compute());
    store.Stage(batch.layer, static_cast<int>(e), 0);
  }
}

}  // namespace

void RunExpertLanes(kernels::Backend& backend, Device& device, ExpertStore& store, const EngineOptions& options, const ExpertBatch& batch) {
  const std::vector<ExpertUse> uses = store.Plan(batch.layer, batch.count_X);
  ExpertStats& stats = store.stats();
  std::vector<ExpertJob> resident;
  for (const ExpertUse& use : uses) {
    if (use.lane == Lane::kResident) resident.push_back(JobFor(store, batch, use, store.blob(batch.layer, use.expert)));
    (use.lane == Lane::kResident ? stats.picks_resident : use.lane == Lane::kStreamed ? stats.picks_streamed : stats.picks_cpu) += use.rows;
  }
  RunJobs(device, batch, resident);
  RunStreamed(device, store, batch, uses);
  RunOnCpu(backend, device, store, batch, uses);
  if (!options.zero_hit_skipping) {
    CopyUnused(device, store, batch);
    return;
  }
  for (std::size_t e = 0; e < batch.count_X.size(); ++e) {
    if (batch.count_X[e] == 0 && !store.resident(batch.layer, static_cast<int>(e))) {
      stats.bytes_skipped += store.spec(batch.layer, static_cast<int>(e)).bytes;
    }
  }
}

}  // namespace lockstep::fast
