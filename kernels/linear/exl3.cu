// EXL3 linears on the device, host side: the jobs of a call sorted into launches, and the memory that these share.
#include <algorithm>
#include <compare>
#include <map>
#include <set>
#include <utility>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/linear_cuda_slots.h"

namespace lockstep::kernels {
namespace {

// Which kernel takes a tile.
enum class TileSize { kSmall, kLarge64, kLarge128 };

int CodeRows(TileSize size) { return size == TileSize::kSmall ? kExl3SmallSlots : size == TileSize::kLarge64 ? 64 : 128; }
int Terms(Exl3Form form) { return form == Exl3Form::kInt16 ? 2 : 1; }
int RowsOf(TileSize size, Exl3Form form) { return CodeRows(size) / Terms(form); }

// Jobs that one launch can serve, whatever their outputs. Small tiles: any rate and codebook of a form.
struct LaunchKey {
  std::int32_t in = 0, in_features = 0;
  Exl3Form form = Exl3Form::kInt8;
  auto operator<=>(const LaunchKey&) const = default;
};

LaunchKey KeyOf(const LinearSpec& s) { return {s.in_padded, s.in_features, FormOf(Exl3JobOf(s, nullptr))}; }

// What the jobs of a launch are like: their rates (codebook, twice the bits), and the widest of them.
struct LaunchJobs {
  std::set<std::pair<Codebook, int>> rates;
  std::int32_t max_out = 0;
};

// A call's common part.
Exl3Call CallOf(const GroupedLinear& g, const LaunchKey& key, const LaunchJobs& jobs) {
  static_assert(kMaxLinearParts == kExl3Parts);
  Exl3Call call;
  call.tiles.form = key.form;
  call.tiles.parts = g.parts();
  bool whole = key.in_features % 4 == 0 && reinterpret_cast<std::uintptr_t>(g.up) % 8 == 0;
  for (int p = 0; p < g.parts(); ++p) {
    const LinearPart& part = g.part[static_cast<std::size_t>(p)];
    call.parts[p] = {part.x, part.x_stride, part.y_bf16, part.y_fp32, part.y_stride};
    whole = whole && reinterpret_cast<std::uintptr_t>(part.x) % 8 == 0 && part.x_stride % 4 == 0;
  }
  call.input = {g.x_index, g.up, g.weight, g.limit, whole};
  call.in = key.in;
  call.in_features = key.in_features;
  call.out = jobs.max_out;
  call.overflow = g.overflow;
  return call;
}

// Memory of prepared rows.
void SetCodes(CudaStream& stream, bool small, Exl3Call* call) {
  const auto slots = static_cast<std::size_t>(call->tiles.slots()), blocks = static_cast<std::size_t>(call->in / 128);
  const std::size_t code_bytes = small && call->tiles.form != Exl3Form::kHalf ? 4 : 2;
  call->codes = stream.Scratch(kLinearCodes, slots * static_cast<std::size_t>(call->terms() * call->in) * code_bytes);
  std::byte* rows = stream.Scratch(kLinearScales, blocks * slots * sizeof(ScaleSum) + slots * sizeof(float));
  call->scale_sums = reinterpret_cast<ScaleSum*>(rows);
  call->scales = reinterpret_cast<float*>(rows);
  call->z = reinterpret_cast<float*>(rows + blocks * slots * sizeof(ScaleSum));
}

// Memory of small tiles' segments.
void SetPartial(CudaStream& stream, Exl3Call* call) {
  const auto outputs = static_cast<std::size_t>(call->tiles.parts * call->tiles.count * (call->out / kExl3Columns));
  const auto floats = static_cast<std::size_t>(SmallPartialFloats(call->tiles.tile_rows));
  call->partial = reinterpret_cast<float*>(stream.Scratch(kLinearPartial, outputs * floats * sizeof(float)));
  call->arrivals = reinterpret_cast<std::int32_t*>(stream.ZeroedScratch(outputs * sizeof(std::int32_t)));
}

// Small tiles: one launch for all rates, after one that prepares the rows if they are many.
void LaunchSmall(CudaStream& stream, const LaunchJobs& jobs, Exl3Call* call) {
  SetPartial(stream, call);
  call->prepared = call->max_tile_rows > kExl3OwnRows;
  if (call->prepared) {
    SetCodes(stream, true, call);
    LaunchExl3PrepareSmall(*call, stream);
  }
  int max_bits = 0;
  for (const auto& [codebook, bits_x2] : jobs.rates) max_bits = std::max(max_bits, bits_x2);
  if (call->tiles.form == Exl3Form::kHalf) LaunchExl3SmallHalf(*call, max_bits, stream);
  else LaunchExl3SmallInteger(*call, max_bits, stream);
}

// Large tiles: prepares the rows, then a launch a rate.
void LaunchLarge(CudaStream& stream, TileSize size, const LaunchJobs& jobs, Exl3Call* call) {
  SetCodes(stream, false, call);
  LaunchExl3PrepareLarge(*call, stream);
  for (const auto& [codebook, bits_x2] : jobs.rates) {
    if (call->tiles.form == Exl3Form::kHalf) LaunchExl3LargeHalf(*call, CodeRows(size), codebook, bits_x2, stream);
    else LaunchExl3LargeInteger(*call, CodeRows(size), bits_x2, stream);
  }
}

// Jobs and tiles where the kernels find them: in the parameters if they fit.
void SetTiles(CudaStream& stream, const std::vector<Exl3Job>& jobs, const std::vector<RowTile>& tiles, Exl3Tiles* list) {
  list->count = static_cast<std::int64_t>(tiles.size());
  if (jobs.size() <= std::size(list->small_jobs) && tiles.size() <= std::size(list->small_tiles)) {
    std::copy(jobs.begin(), jobs.end(), list->small_jobs);
    std::copy(tiles.begin(), tiles.end(), list->small_tiles);
    return;
  }
  list->jobs = reinterpret_cast<const Exl3Job*>(stream.Upload(kLinearJobs, jobs.data(), jobs.size() * sizeof(Exl3Job)));
  list->tiles = reinterpret_cast<const RowTile*>(stream.Upload(kLinearTiles, tiles.data(), tiles.size() * sizeof(RowTile)));
}

// The tiles of a launch: full large ones first, then what is left in the smallest that holds it.
void SplitRun(const RowRun& run, Exl3Form form, std::vector<RowTile> (&tiles)[3]) {
  std::int64_t begin = run.begin, left = run.rows;
  while (left > 0) {
    const bool small = left <= kExl3SmallSlots;  // int16: two tiles
    const TileSize size = small ? TileSize::kSmall : left <= RowsOf(TileSize::kLarge64, form) ? TileSize::kLarge64 : TileSize::kLarge128;
    const std::int64_t rows = std::min<std::int64_t>(left, RowsOf(size, form));
    tiles[static_cast<int>(size)].push_back({run.job, static_cast<std::int32_t>(rows), begin});
    begin += rows;
    left -= rows;
  }
}

// Launches of the host's jobs that have `key` in some part.
void RunHostJobs(CudaStream& stream, const GroupedLinear& g, const LaunchKey& key, const LaunchJobs& of_key) {
  std::vector<Exl3Job> jobs;
  for (std::size_t i = 0; i < g.specs.size(); ++i) {
    const bool member = g.specs[i]->kind == LinearSpec::Kind::kExl3 && KeyOf(*g.specs[i]) == key;
    jobs.push_back(member ? Exl3JobOf(*g.specs[i], g.blobs[i]) : Exl3Job());  // the kernels pass over a job without a rate
  }
  std::vector<RowTile> tiles[3];
  for (const RowRun& run : g.runs) {
    const Exl3Job* job = &jobs[static_cast<std::size_t>(run.job * g.parts())];
    if (std::any_of(job, job + g.parts(), [](const Exl3Job& part) { return part.bits_x2 > 0; })) SplitRun(run, key.form, tiles);
  }
  for (TileSize size : {TileSize::kSmall, TileSize::kLarge64, TileSize::kLarge128}) {
    const std::vector<RowTile>& of_size = tiles[static_cast<int>(size)];
    if (of_size.empty()) continue;
    Exl3Call call = CallOf(g, key, of_key);
    call.tiles.tile_rows = RowsOf(size, key.form);
    for (const RowTile& tile : of_size) call.max_tile_rows = std::max(call.max_tile_rows, tile.rows);
    SetTiles(stream, jobs, of_size, &call.tiles);
    if (size == TileSize::kSmall) LaunchSmall(stream, of_key, &call);
    else LaunchLarge(stream, size, of_key, &call);
  }
}

// Launches of the device's jobs that have `key`, all as small tiles.
void RunDeviceJobs(CudaStream& stream, const GroupedLinear& g, const LaunchKey& key, const LaunchJobs& of_key) {
  Exl3Call call = CallOf(g, key, of_key);
  const ExpertTable& table = *g.table;
  DeviceExperts& experts = call.tiles.experts;
  call.tiles.tile_rows = RowsOf(TileSize::kSmall, key.form);
  call.max_tile_rows = static_cast<std::int32_t>(std::min<std::int64_t>(g.max_group, call.tiles.tile_rows));
  experts.blob_X = table.blob_X;
  experts.form_X = table.form_X;
  experts.forms = reinterpret_cast<const std::byte*>(table.forms);
  experts.form_bytes = sizeof(ExpertSpec);
  for (std::size_t p = 0; p < g.part_of.size(); ++p) {
    experts.spec_offset[p] = reinterpret_cast<const std::byte*>(&(table.host_forms->*g.part_of[p])) - reinterpret_cast<const std::byte*>(table.host_forms);
  }
  experts.groups = g.groups;
  experts.tiles_per_group = static_cast<std::int32_t>((g.max_group + call.tiles.tile_rows - 1) / call.tiles.tile_rows);
  call.tiles.count = std::min<std::int64_t>(g.max_pairs, table.experts) * experts.tiles_per_group;
  LaunchSmall(stream, of_key, &call);
}

}  // namespace

void RunGroupedExl3(CudaStream& stream, const GroupedLinear& g) {
  std::map<LaunchKey, LaunchJobs> launches;
  const auto add = [&](const LinearSpec& spec) {
    if (spec.kind != LinearSpec::Kind::kExl3) return;
    LaunchJobs& jobs = launches[KeyOf(spec)];
    jobs.rates.insert({spec.codebook, spec.bits_x2});
    jobs.max_out = std::max(jobs.max_out, spec.out_padded);
  };
  for (const LinearSpec* spec : g.specs) add(*spec);
  for (int f = 0; g.table && f < g.table->num_forms; ++f) {
    for (const auto part : g.part_of) add(g.table->host_forms[f].*part);
  }
  for (const auto& [key, jobs] : launches) {
    if (g.table) RunDeviceJobs(stream, g, key, jobs);
    else RunHostJobs(stream, g, key, jobs);
  }
}

}  // namespace lockstep::kernels
