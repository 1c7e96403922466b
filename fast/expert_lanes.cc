#include "fast/expert_lanes.h"

#include <utility>

namespace lockstep::fast {

using kernels::Device;
using kernels::ExpertFfnArgs;
using kernels::ExpertJob;

namespace {

void RunJobs(kernels::Stream& stream, const kernels::KernelTable& kernels, ExpertFfnArgs args, const ExpertJob* jobs, std::size_t count) {
  args.jobs = jobs;
  args.num_jobs = static_cast<std::int64_t>(count);
  if (count > 0) kernels.expert_ffn(stream, args);
}

}  // namespace

void ExpertLanes::Run(Device& device, const ExpertBatch& batch) {
  store_.Plan(batch.layer, batch.count_X(), &uses_);
  ExpertStats& stats = store_.stats();
  for (const ExpertUse& use : uses_) {
    (use.lane == Lane::kResident ? stats.picks_resident : use.lane == Lane::kStreamed ? stats.picks_streamed : stats.picks_cpu) += use.rows;
  }
  RunResident(device, batch);
  RunStreamed(device, batch);
  RunOnCpu(device, batch);
  AccountForUnused(device, batch);
}

ExpertJob ExpertLanes::JobFor(const ExpertBatch& batch, const ExpertUse& use, const std::byte* blob) const {
  return {&store_.spec(batch.layer, use.expert), blob, batch.pairs.groups.begin_X[use.expert], use.rows};
}

void ExpertLanes::RunResident(Device& device, const ExpertBatch& batch) {
  jobs_.clear();
  for (const ExpertUse& use : uses_) {
    if (use.lane == Lane::kResident) jobs_.push_back(JobFor(batch, use, store_.blob(batch.layer, use.expert)));
  }
  RunJobs(device.compute(), device.kernels(), batch.args, jobs_.data(), jobs_.size());
}

// Copies of the next experts run beside the computation of the last: a slot is refilled only after what used it is done.
void ExpertLanes::RunStreamed(Device& device, const ExpertBatch& batch) {
  int slot = 0;
  for (const ExpertUse& use : uses_) {
    if (use.lane != Lane::kStreamed) continue;
    device.WaitFor(device.copy(), device.compute());
    const ExpertJob job = JobFor(batch, use, store_.Stage(batch.layer, use.expert, slot));
    device.WaitFor(device.compute(), device.copy());
    RunJobs(device.compute(), device.kernels(), batch.args, &job, 1);
    store_.Release(batch.layer, slot);
    slot = (slot + 1) % store_.staging_slots();
  }
}

// Rows out, host kernels, results back. Only the pairs of the CPU lane's experts travel.
void ExpertLanes::RunOnCpu(Device& device, const ExpertBatch& batch) {
  GatherForCpu(device, batch);
  if (jobs_.empty()) return;
  std::int32_t overflow = 0;
  ExpertFfnArgs args = batch.args;
  args.x = cpu_x_.data();
  args.token = nullptr;
  args.weight = cpu_weight_.data();
  args.y = cpu_y_.data();
  args.overflow = &overflow;
  RunJobs(backend_.host_stream(), backend_.host_kernels(), args, jobs_.data(), jobs_.size());
  ScatterFromCpu(device, batch);
  if (overflow) {
    device.CopyIn(device.compute(), reinterpret_cast<std::byte*>(batch.args.overflow), reinterpret_cast<const std::byte*>(&overflow), sizeof(overflow));
  }
  device.Synchronize(device.compute());
}

void ExpertLanes::GatherForCpu(Device& device, const ExpertBatch& batch) {
  const auto hidden = static_cast<std::size_t>(batch.args.hidden);
  jobs_.clear();
  std::size_t pairs = 0;
  for (const ExpertUse& use : uses_) pairs += use.lane == Lane::kCpu ? static_cast<std::size_t>(use.rows) : 0;
  cpu_weight_.resize(pairs);
  cpu_x_.resize(pairs * hidden);
  cpu_y_.resize(pairs * hidden);
  std::size_t next = 0;
  for (const ExpertUse& use : uses_) {
    if (use.lane != Lane::kCpu) continue;
    ExpertJob job = JobFor(batch, use, store_.blob(batch.layer, use.expert));
    const std::int64_t begin = std::exchange(job.begin, static_cast<std::int64_t>(next));
    for (std::int64_t p = begin; p < begin + use.rows; ++p, ++next) {
      const std::int64_t token = batch.pairs.token[p];
      cpu_weight_[next] = batch.pairs.weight[p];
      device.CopyOut(device.compute(), reinterpret_cast<std::byte*>(cpu_x_.data() + next * hidden),
                     reinterpret_cast<const std::byte*>(batch.args.x + token * batch.args.hidden), hidden * sizeof(std::uint16_t));
    }
    jobs_.push_back(job);
  }
  if (!jobs_.empty()) device.Synchronize(device.compute());
}

void ExpertLanes::ScatterFromCpu(Device& device, const ExpertBatch& batch) {
  const auto hidden = static_cast<std::size_t>(batch.args.hidden);
  std::size_t next = 0;
  for (const ExpertUse& use : uses_) {
    if (use.lane != Lane::kCpu) continue;
    const auto begin = static_cast<std::size_t>(batch.pairs.groups.begin_X[use.expert]), rows = static_cast<std::size_t>(use.rows);
    device.CopyIn(device.compute(), reinterpret_cast<std::byte*>(batch.args.y + begin * hidden),
                  reinterpret_cast<const std::byte*>(cpu_y_.data() + next * hidden), rows * hidden * sizeof(std::uint16_t));
    next += rows;
  }
}

// Zero-hit skipping: what nobody picked stays where it is. Without it every expert that is not resident crosses the link, as in engines
// without a plan.
void ExpertLanes::AccountForUnused(Device& device, const ExpertBatch& batch) {
  for (int expert = 0; expert < batch.experts; ++expert) {
    if (batch.pairs.groups.count_X[expert] > 0 || store_.resident(batch.layer, expert)) continue;
    if (options_.zero_hit_skipping) {
      store_.stats().bytes_skipped += store_.spec(batch.layer, expert).bytes;
    } else {
      device.WaitFor(device.copy(), device.compute());
      store_.Stage(batch.layer, expert, 0);
      store_.Release(batch.layer, 0);
    }
  }
}

}  // namespace lockstep::fast
