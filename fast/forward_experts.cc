// The feed-forward half of a layer: router, routed experts in their lanes, the shared expert, the sum.
#include <algorithm>
#include <utility>
#include <vector>

#include "fast/forward.h"

namespace lockstep::fast {
namespace {

// The rows from the first to the last of the ranges.
RowRange Hull(const Ranges& ranges) { return {ranges.front().begin, ranges.back().end}; }

}  // namespace

void Forward::FeedForward(int layer, const Ranges& ranges) {
  if (ranges.empty()) return;
  const kernels::ExpertTable* table = DeviceJobs(layer, ranges);
  Enqueue([&] {
    Route(layer, ranges, /*shared=*/table != nullptr);
    if (table) RunExpertsOfDevice(layer, *table, ranges);
  });
  if (table) {
    r_.experts.stats().picks_resident += ranges.front().rows() * config_.num_experts_per_tok;
  } else {
    RunPlannedExperts(layer, ranges);
    Enqueue([&] { RunSharedExpert(layer, ranges); });
  }
  Enqueue([&] {
    const RowRange hull = Hull(ranges);
    shared_TE_ = table ? ws().pair_out.data() + (hull.rows() * config_.num_experts_per_tok - hull.begin) * config_.hidden_size : ws().shared_out.data();
    if (r_.options.trace) SumExperts(ranges);
  });
}

// The feed-forward half's output f, where the next site does not make it on its way.
void Forward::SumExperts(const Ranges& ranges) {
  for (const RowRange& range : ranges) kernels().combine(stream(), SumArgs(range));
  shared_TE_ = nullptr;
}

kernels::CombineArgs Forward::SumArgs(RowRange range) {
  const std::int64_t hidden = config_.hidden_size, top_k = config_.num_experts_per_tok;
  return {ws().pair_out.data(), ws().pair_of_TK.data() + range.begin * top_k, config_.num_experts_per_tok, shared_TE_ + range.begin * hidden,
          range.rows(), hidden, ws().f_TE.data() + range.begin * hidden};
}

// The layer's experts if the device is to find their jobs: all are there, and the rows are few and in one piece. Then the shared expert is
// one more of them.
const kernels::ExpertTable* Forward::DeviceJobs(int layer, const Ranges& ranges) {
  return ranges.size() == 1 && ranges.front().rows() <= kernels().device_job_rows ? r_.experts.table(layer) : nullptr;
}

// The choice of experts, and the pairs of all rows together, so that an expert is touched once a step.
void Forward::Route(int layer, const Ranges& ranges, bool shared) {
  const kernels::PairGroupsArgs pairs = PairArgs(layer, ranges, shared);
  if (ranges.size() == 1) {
    kernels().route(stream(), {ChoiceArgs(layer, ranges.front()), pairs, std::exchange(mix_later_, {})});
    TraceRouting(layer, ranges);
    return;
  }
  for (const RowRange& range : ranges) kernels().router(stream(), ChoiceArgs(layer, range));
  TraceRouting(layer, ranges);
  const std::int64_t top_k = config_.num_experts_per_tok;
  for (std::size_t i = 1; i < ranges.size(); ++i) {  // what lies between is not of this layer
    const std::int64_t begin = ranges[i - 1].end * top_k, end = ranges[i].begin * top_k;
    const std::vector<std::int32_t> none(static_cast<std::size_t>(end - begin), -2);
    device().CopyIn(stream(), reinterpret_cast<std::byte*>(ws().experts_TK.data() + begin), reinterpret_cast<const std::byte*>(none.data()),
                    none.size() * sizeof(std::int32_t));
  }
  kernels().pair_groups(stream(), pairs);
}

kernels::RouterArgs Forward::ChoiceArgs(int layer, RowRange range) {
  const DeviceLayer& w = weights(layer);
  const int top_k = config_.num_experts_per_tok;
  kernels::RouterArgs router;
  router.x_TE = ws().x_TE.data() + range.begin * config_.hidden_size;
  router.rows = range.rows();
  router.hidden = config_.hidden_size;
  router.gate_XE = w.gate.data();
  router.experts = config_.n_routed_experts;
  router.bias_X = w.gate_bias.data();
  router.tid2eid = w.tid2eid.data();
  router.ids = here().ids.device + range.begin;
  router.top_k = top_k;
  router.normalize = config_.norm_topk_prob && (!config_.is_v41() || top_k > 1);
  router.epsilon = config_.is_v41() ? 1e-20f : 0.0f;
  router.scaling = static_cast<float>(config_.routed_scaling_factor);
  router.experts_TK = ws().experts_TK.data() + range.begin * top_k;
  router.weights_TK = ws().weights_TK.data() + range.begin * top_k;
  return router;
}

kernels::PairGroupsArgs Forward::PairArgs(int layer, const Ranges& ranges, bool shared) {
  const std::int64_t top_k = config_.num_experts_per_tok;
  const RowRange hull = Hull(ranges);
  const PairArrays pairs = DevicePairs(ranges);
  kernels::PairGroupsArgs group;
  group.experts_TK = ws().experts_TK.data() + hull.begin * top_k;
  group.weights_TK = ws().weights_TK.data() + hull.begin * top_k;
  group.rows = hull.rows();
  group.top_k = config_.num_experts_per_tok;
  group.experts = config_.n_routed_experts;
  group.shared = shared;
  group.groups = pairs.groups;
  group.token = pairs.token;
  group.weight = pairs.weight;
  group.pair_of_TK = ws().pair_of_TK.data() + hull.begin * top_k;
  group.nan_flag = here().router_nan.device + layer;
  return group;
}

PairArrays Forward::DevicePairs(const Ranges& ranges) {
  return PairArrays::In(ws().pairs.data(), config_.n_routed_experts, Hull(ranges).rows(), config_.num_experts_per_tok);
}

// Everything but the jobs.
kernels::ExpertFfnArgs Forward::ExpertArgs(int layer, const Ranges& ranges) {
  const PairArrays pairs = DevicePairs(ranges);
  kernels::ExpertFfnArgs args;
  args.x = ws().x_TE.data() + Hull(ranges).begin * config_.hidden_size;
  args.token = pairs.token;
  args.weight = pairs.weight;
  args.limit = static_cast<float>(config_.swiglu_limit);
  args.hidden = config_.hidden_size;
  args.y = ws().pair_out.data();
  args.overflow = here().overflow.device + layer;
  return args;
}

void Forward::RunExpertsOfDevice(int layer, const kernels::ExpertTable& table, const Ranges& ranges) {
  kernels::ExpertFfnArgs args = ExpertArgs(layer, ranges);
  args.table = &table;
  args.groups = DevicePairs(ranges).groups;
  args.max_group = Hull(ranges).rows();
  args.max_pairs = args.max_group * (config_.num_experts_per_tok + 1);
  args.shared_rows = args.max_group;
  kernels().expert_ffn(stream(), args);
}

// The one place of a layer where the host waits for the device: it must know who was picked.
void Forward::RunPlannedExperts(int layer, const Ranges& ranges) {
  graphs_.Flush();
  const std::int64_t hull_rows = Hull(ranges).rows();
  CopyOut(ws().pairs.data(), static_cast<std::int64_t>(PairArrays::Bytes(config_.n_routed_experts, hull_rows, config_.num_experts_per_tok)), host_pairs_.data());
  device().Synchronize(stream());
  ExpertBatch batch;
  batch.layer = layer;
  batch.experts = config_.n_routed_experts;
  batch.args = ExpertArgs(layer, ranges);
  batch.pairs = PairArrays::In(host_pairs_.data(), config_.n_routed_experts, hull_rows, config_.num_experts_per_tok);
  lanes_.Run(device(), batch);
}

void Forward::RunSharedExpert(int layer, const Ranges& ranges) {
  const DeviceExpert& shared_expert = weights(layer).shared_expert;
  const std::int64_t hidden = config_.hidden_size;
  for (const RowRange& range : ranges) {
    const kernels::ExpertJob job{&shared_expert.spec, shared_expert.blob.data(), 0, range.rows()};
    kernels::ExpertFfnArgs shared;
    shared.jobs = &job;
    shared.num_jobs = 1;
    shared.x = ws().x_TE.data() + range.begin * hidden;
    shared.limit = static_cast<float>(config_.swiglu_limit);
    shared.hidden = hidden;
    shared.y = ws().shared_out.data() + range.begin * hidden;
    shared.overflow = here().overflow.device + layer;
    kernels().expert_ffn(stream(), shared);
  }
}

}  // namespace lockstep::fast
