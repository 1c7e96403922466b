// EXL3 linears on the device, host side: the launches of a call, and the memory that these share.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "kernels/contract/segments.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/exl3_launches.h"
#include "kernels/linear/exl3_lists.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/linear_cuda_slots.h"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

// A call's common part, for `count` of the parts from `first` on.
Exl3Call CallOf(const GroupedLinear& g, int first, int count, const LaunchKey& key, const LaunchJobs& jobs) {
  static_assert(kMaxLinearParts == kExl3Parts);
  Exl3Call call;
  call.tiles.form = key.form;
  call.tiles.parts = count;
  call.tiles.job_stride = g.parts();
  call.tiles.first_job = first;
  for (int p = 0; p < count; ++p) {
    const LinearPart& part = g.part[static_cast<std::size_t>(first + p)];
    call.parts[p] = {part.x, part.x_stride, part.y_bf16, part.y_fp32, part.y_stride};
    call.first_output[p + 1] = call.first_output[p] + jobs.max_out[first + p] / kExl3Columns;
    call.out = std::max(call.out, jobs.max_out[first + p]);
  }
  call.input = {g.x_index, g.up, g.weight, g.limit, g.norm_weight, g.norm_eps};
  call.in = key.in;
  call.in_features = key.in_features;
  call.overflow = g.overflow;
  return call;
}

// Memory of `count` prepared rows of `in` values for small tiles, in two scratch slots.
SmallCodes SmallCodesOf(CudaStream& stream, const Exl3Call& call, std::int64_t in, std::int64_t count, LinearSlot codes, LinearSlot scale_sums) {
  const auto values = static_cast<std::size_t>(count * in);
  const std::size_t code_bytes = call.tiles.form == Exl3Form::kHalf ? 2 : 4;
  return {stream.Scratch(codes, values * static_cast<std::size_t>(call.terms()) * code_bytes),
          reinterpret_cast<ScaleSum*>(stream.Scratch(scale_sums, values / 128 * sizeof(ScaleSum)))};
}

// Memory of prepared rows of large tiles, in two scratch slots.
void SetLargeCodes(CudaStream& stream, LinearSlot codes, LinearSlot scales, Exl3Call* call) {
  const auto slots = static_cast<std::size_t>(call->tiles.large_slots()), blocks = static_cast<std::size_t>(call->in / 128);
  call->codes = stream.Scratch(codes, slots * static_cast<std::size_t>(call->terms()) * blocks * 128 * 2);
  call->scales = reinterpret_cast<float*>(stream.Scratch(scales, (blocks + 1) * slots * sizeof(float)));
  call->z = call->scales + blocks * slots;
}

// Memory of small tiles' segments, and of what blocks tell each other.
void SetPartial(CudaStream& stream, Exl3Call* call) {
  const auto tiles = static_cast<std::size_t>(call->tiles.count), outputs = tiles * static_cast<std::size_t>(call->outputs() + call->down.outputs);
  const auto words = static_cast<std::size_t>(SmallPartialWords(call->tiles.tile_rows));
  call->partial = reinterpret_cast<std::uint32_t*>(stream.ZeroedScratch((outputs * words + tiles * contract::kSegments) * sizeof(std::uint32_t), CudaStream::Zeroed::kProducts));
  call->down.ready = reinterpret_cast<std::int32_t*>(call->partial + outputs * words);
}

// Small tiles: the product, one launch for all rates, after one that prepares the rows if they are many or not there yet.
void LaunchSmall(CudaStream& stream, const LaunchJobs& jobs, Exl3Call* call) {
  call->prepared = call->max_tile_rows > kExl3OwnRows || call->input.up;
  if (call->prepared) {
    call->small = SmallCodesOf(stream, *call, call->in, call->tiles.slots(), kLinearCodes, kLinearScales);
    LaunchExl3PrepareSmall(*call, stream);
  }
  call->shared_first = !call->prepared && stream.last_launch().waits_first;
  SetPartial(stream, call);
  int ring_bytes = 0;
  for (const auto& [codebook, bits_x2] : jobs.rates) ring_bytes = std::max(ring_bytes, SmallRingBytes(bits_x2));
  if (call->tiles.form == Exl3Form::kHalf) LaunchExl3SmallHalf(*call, ring_bytes, stream);
  else LaunchExl3SmallInteger(*call, ring_bytes, stream);
}

// Memory of what blocks of large tiles count, if the call is no relay's.
void SetCounts(CudaStream& stream, const LaunchJobs& jobs, Exl3Call* call) {
  if (call->taken) return;
  call->num_counts = static_cast<std::int32_t>(2 * jobs.rates.size());
  call->counts = call->taken = reinterpret_cast<std::int32_t*>(stream.Scratch(kLinearCounts, 2 * jobs.rates.size() * sizeof(std::int32_t)));
}

// Large tiles: prepares the rows, then a launch a rate and size, the longest blocks first; a launch starts while the one before it ends. In a relay
// down has codes of its own, since gate and up may still read theirs, and waits for nobody but the counts.
void LaunchLarge(CudaStream& stream, const LaunchJobs& jobs, Exl3Call* call) {
  const bool takes = call->relay.awaited > 0;
  SetCounts(stream, jobs, call);
  SetLargeCodes(stream, takes ? kLinearDownCodes : kLinearCodes, takes ? kLinearDownScales : kLinearScales, call);
  LaunchExl3PrepareLarge(*call, stream);
  call->waits = !takes;
  for (const int rows : {128, 64}) {
    if (rows == 128 ? call->tiles.count_128 == 0 : call->tiles.count_128 == call->tiles.count) continue;
    for (const auto& [codebook, bits_x2] : jobs.rates) {
      if (call->tiles.form == Exl3Form::kHalf) LaunchExl3LargeHalf(*call, rows, codebook, bits_x2, stream);
      else if (call->tiles.form == Exl3Form::kInt16) LaunchExl3LargeInt16(*call, rows, bits_x2, stream);
      else LaunchExl3LargeInt8(*call, rows, bits_x2, stream);
      call->waits = false;
      ++call->taken;
    }
  }
}

// The host's jobs; those without `key` have no rate, and the kernels pass over them.
std::vector<Exl3Job> HostJobs(const GroupedLinear& g, const std::function<bool(const LinearSpec&)>& takes) {
  std::vector<Exl3Job> jobs;
  for (std::size_t i = 0; i < g.specs.size(); ++i) jobs.push_back(takes(*g.specs[i]) ? Exl3JobOf(*g.specs[i], g.blobs[i]) : Exl3Job());
  return jobs;
}

// Launches of the host's jobs that have a key in some part; without tiles if there are none of that size.
struct HostCalls {
  LaunchJobs jobs;
  Exl3Call small, large;
};

HostCalls CallsOf(const GroupedLinear& g, const LaunchKey& key, const LaunchJobs& of_key) {
  const Exl3Call call = CallOf(g, 0, g.parts(), key, of_key);
  return {of_key, call, call};
}

void AddTiles(const GroupedLinear& g, const LaunchKey& key, HostCalls* calls, Lists* lists) {
  const std::vector<Exl3Job> jobs = HostJobs(g, [&](const LinearSpec& s) { return s.kind == LinearSpec::Kind::kExl3 && KeyOf(s) == key; });
  std::vector<RowRun> runs;
  for (const RowRun& run : g.runs) {
    const Exl3Job* job = &jobs[static_cast<std::size_t>(run.job * g.parts())];
    if (std::any_of(job, job + g.parts(), [](const Exl3Job& part) { return part.bits_x2 > 0; })) runs.push_back(run);
  }
  const SplitTiles split = Split(runs, key.form, key.in);
  calls->small.tiles.tile_rows = SmallRows(key.form);
  calls->small.max_tile_rows = MostRows(split.small);
  calls->large.max_tile_rows = MostRows(split.large);
  calls->large.tiles.count_128 = split.count_128;
  lists->Add(jobs, split.small, &calls->small.tiles);
  lists->Add(jobs, split.large, &calls->large.tiles);
}

void LaunchSmallOf(CudaStream& stream, HostCalls* calls) {
  if (calls->small.tiles.count > 0) LaunchSmall(stream, calls->jobs, &calls->small);
}
void LaunchLargeOf(CudaStream& stream, HostCalls* calls) {
  if (calls->large.tiles.count > 0) LaunchLarge(stream, calls->jobs, &calls->large);
}

// The matrices of each form, as parameters if they fit.
void SetForms(const GroupedLinear& g, Exl3Tiles* tiles) {
  const ExpertTable& table = *g.table;
  std::vector<Exl3Job> jobs;
  ForSpecs(g, [&](const LinearSpec& spec, std::size_t) { jobs.push_back(spec.kind == LinearSpec::Kind::kExl3 ? Exl3JobOf(spec, nullptr) : Exl3Job()); });
  if (jobs.size() <= std::size(tiles->small_jobs)) {
    std::copy(jobs.begin(), jobs.end(), tiles->small_jobs);
    return;
  }
  tiles->experts.forms = reinterpret_cast<const std::byte*>(table.forms);
  tiles->experts.form_bytes = sizeof(ExpertSpec);
  for (std::size_t p = 0; p < g.part_of.size(); ++p) {
    tiles->experts.spec_offset[p] = reinterpret_cast<const std::byte*>(&(table.host_forms->*g.part_of[p])) - reinterpret_cast<const std::byte*>(table.host_forms);
  }
}

// The device's jobs as small tiles.
void SetDeviceTiles(const GroupedLinear& g, Exl3Call* call) {
  const ExpertTable& table = *g.table;
  DeviceExperts& experts = call->tiles.experts;
  call->tiles.tile_rows = SmallRows(call->tiles.form);
  call->max_tile_rows = static_cast<std::int32_t>(std::min<std::int64_t>(g.max_group, call->tiles.tile_rows));
  experts.blob_X = table.blob_X;
  experts.form_X = table.form_X;
  SetForms(g, &call->tiles);
  experts.groups = g.groups;
  const auto tiles_of = [&](std::int64_t rows) { return static_cast<std::int32_t>((rows + call->tiles.tile_rows - 1) / call->tiles.tile_rows); };
  experts.tiles_per_group = tiles_of(g.max_group);
  const bool shared = g.shared_rows > 0;
  if (shared) {
    experts.shared = table.experts - 1;
    experts.shared_rows = static_cast<std::int32_t>(g.shared_rows);
    experts.shared_tiles = tiles_of(g.shared_rows);
    experts.shared_begin = g.max_pairs - g.shared_rows;
  }
  const std::int64_t routed = std::min<std::int64_t>(g.max_pairs - g.shared_rows, table.experts - (shared ? 1 : 0));
  call->tiles.count = experts.shared_tiles + routed * experts.tiles_per_group;
}

// Launches of the device's jobs that have `key`.
void RunDeviceJobs(CudaStream& stream, const GroupedLinear& g, const LaunchKey& key, const LaunchJobs& of_key) {
  Exl3Call call = CallOf(g, 0, g.parts(), key, of_key);
  SetDeviceTiles(g, &call);
  LaunchSmall(stream, of_key, &call);
}

std::deque<HostCalls> HostCallsOf(const GroupedLinear& g, const std::map<LaunchKey, LaunchJobs>& launches, Lists* lists) {
  std::deque<HostCalls> calls;
  for (const auto& [key, jobs] : launches) AddTiles(g, key, &calls.emplace_back(CallsOf(g, key, jobs)), lists);
  return calls;
}

// Lets large tiles of down begin when those of gate and up are there that have the same rows, if they are the same tiles with the same numbers of outputs.
void SetRelay(CudaStream& stream, const GroupedLinear& gate_up, HostCalls* first, HostCalls* second) {
  Exl3Call &pair = first->large, &down = second->large;
  const std::int64_t tiles = pair.tiles.count;
  if (tiles == 0 || down.tiles.count != tiles || down.tiles.count_128 != pair.tiles.count_128) return;
  const auto outputs = [&](std::size_t job) { return (gate_up.specs[2 * job]->out_padded + gate_up.specs[2 * job + 1]->out_padded) / kExl3Columns; };
  for (std::size_t job = 0; 2 * job < gate_up.specs.size(); ++job) {
    if (outputs(job) != outputs(0)) return;
  }
  const std::size_t launches = 2 * (first->jobs.rates.size() + second->jobs.rates.size()), counts = 2 * static_cast<std::size_t>(tiles) + launches;
  pair.counts = reinterpret_cast<std::int32_t*>(stream.Scratch(kLinearCounts, counts * sizeof(std::int32_t)));
  pair.num_counts = static_cast<std::int32_t>(counts);
  pair.relay = {pair.counts, pair.counts + tiles, 0};
  pair.taken = pair.counts + 2 * tiles;
  down.relay = {pair.counts, pair.counts + tiles, outputs(0)};
  down.taken = pair.taken + 2 * first->jobs.rates.size();
}

// BF16 linears into a launch of small tiles.
void TakeAlong(const std::vector<DenseLinear>& beside, Exl3Call* call) {
  LOCKSTEP_CHECK(call->tiles.count > 0 && beside.size() <= std::size(call->dense.linears));
  call->dense.count = static_cast<std::int32_t>(beside.size());
  std::copy(beside.begin(), beside.end(), call->dense.linears);
}

}  // namespace

bool RunExl3Experts(CudaStream& stream, const GroupedLinear& g) {
  const std::optional<ExpertLaunch> launch = OneLaunch(g);
  if (!launch) return false;
  Exl3Call call = CallOf(g, 0, 2, *launch->pair, launch->jobs);
  call.tiles.any_integer = true;
  if (g.table) {
    SetDeviceTiles(g, &call);
  } else {
    const std::vector<RowTile> tiles = SplitRows(g.runs, call.tiles.form, kExl3SmallSlots, 128).small;
    Lists lists;
    call.tiles.tile_rows = SmallRows(call.tiles.form);
    call.max_tile_rows = MostRows(tiles);
    lists.Add(HostJobs(g, [](const LinearSpec&) { return true; }), tiles, &call.tiles);
    lists.Send(stream);
  }
  std::int64_t rows = g.max_pairs;
  for (const RowRun& run : g.runs) rows = std::max(rows, run.begin + run.rows);
  const LinearPart& out = g.part[2];
  call.parts[2] = {nullptr, 0, out.y_bf16, out.y_fp32, out.y_stride};
  call.down.codes = SmallCodesOf(stream, call, launch->down->in, rows, kLinearDownCodes, kLinearDownScales);
  call.down.in = launch->down->in;
  call.down.outputs = launch->jobs.max_out[2] / kExl3Columns;
  LaunchSmall(stream, launch->jobs, &call);
  return true;
}

void RunGroupedExl3(CudaStream& stream, const GroupedLinear& g) {
  const std::map<LaunchKey, LaunchJobs> launches = LaunchesOf(g);
  if (g.table) {
    for (const auto& [key, jobs] : launches) RunDeviceJobs(stream, g, key, jobs);
    return;
  }
  Lists lists;
  std::deque<HostCalls> calls = HostCallsOf(g, launches, &lists);
  if (!g.beside.empty()) TakeAlong(g.beside, &calls.front().small);
  lists.Send(stream);
  for (HostCalls& of_key : calls) {
    LaunchSmallOf(stream, &of_key);
    LaunchLargeOf(stream, &of_key);
  }
}

void RunExl3GateUpDown(CudaStream& stream, const GroupedLinear& gate_up, const GroupedLinear& down) {
  if (down.table) {
    RunGroupedExl3(stream, gate_up);
    RunGroupedExl3(stream, down);
    return;
  }
  Lists lists;
  std::deque<HostCalls> first = HostCallsOf(gate_up, LaunchesOf(gate_up), &lists), second = HostCallsOf(down, LaunchesOf(down), &lists);
  lists.Send(stream);
  if (first.size() == 1 && second.size() == 1) SetRelay(stream, gate_up, &first.front(), &second.front());
  for (HostCalls& of_key : first) {
    LaunchSmallOf(stream, &of_key);
    LaunchLargeOf(stream, &of_key);
  }
  for (HostCalls& of_key : second) {
    LaunchLargeOf(stream, &of_key);  // in a relay, right behind those of gate and up
    LaunchSmallOf(stream, &of_key);
  }
}

}  // namespace lockstep::kernels
