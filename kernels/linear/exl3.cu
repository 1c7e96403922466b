// EXL3 linears on the device, host side: the jobs of a call sorted into launches, and the memory that these share.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

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

// Jobs that one launch can serve. Small tiles: any rate and codebook of a form.
struct LaunchKey {
  std::int32_t in = 0, out = 0, in_features = 0, out_features = 0;
  Exl3Form form = Exl3Form::kInt8;
  bool operator<(const LaunchKey& o) const {
    return std::tie(in, out, in_features, out_features, form) < std::tie(o.in, o.out, o.in_features, o.out_features, o.form);
  }
};

LaunchKey KeyOf(const LinearSpec& s) { return {s.in_padded, s.out_padded, s.in_features, s.out_features, FormOf(Exl3JobOf(s, nullptr))}; }

// A call's common part.
Exl3Call CallOf(const GroupedLinear& g, const LaunchKey& key) {
  Exl3Call call;
  call.tiles.form = key.form;
  call.tiles.parts = g.parts;
  call.input = {g.x, g.x_stride, g.x_index, g.up, g.weight, g.limit};
  call.in = key.in;
  call.out = key.out;
  call.in_features = key.in_features;
  call.out_features = key.out_features;
  call.y_bf16 = g.y_bf16;
  call.y_fp32 = g.y_fp32;
  call.y_stride = g.y_stride;
  call.y_part = g.y_part;
  call.overflow = g.overflow;
  return call;
}

void SetMemory(CudaStream& stream, TileSize size, Exl3Call* call) {
  const auto slots = static_cast<std::size_t>(call->tiles.slots()), blocks = static_cast<std::size_t>(call->in / 128);
  const std::size_t code_bytes = size == TileSize::kSmall && call->tiles.form != Exl3Form::kHalf ? 4 : 2;
  call->codes = stream.Scratch(kLinearCodes, slots * static_cast<std::size_t>(call->terms() * call->in) * code_bytes);
  std::byte* rows = stream.Scratch(kLinearScales, blocks * slots * sizeof(ScaleSum) + slots * sizeof(float));
  call->scale_sums = reinterpret_cast<ScaleSum*>(rows);
  call->scales = reinterpret_cast<float*>(rows);
  call->z = reinterpret_cast<float*>(rows + blocks * slots * sizeof(ScaleSum));
  if (size != TileSize::kSmall) return;
  const auto outputs = static_cast<std::size_t>(call->tiles.parts * call->tiles.count * (call->out / kExl3Columns));
  call->partial = reinterpret_cast<float*>(
      stream.Scratch(kLinearPartial, outputs * 4 * static_cast<std::size_t>(call->tiles.tile_rows) * kExl3Columns * sizeof(float)));
  call->arrivals = reinterpret_cast<std::int32_t*>(stream.ZeroedScratch(outputs * sizeof(std::int32_t)));
}

// Codebooks and rates (twice the bits) among the jobs of a launch.
using Rates = std::set<std::pair<Codebook, int>>;

// Prepares the rows, then multiplies: small tiles in one launch for all rates, large ones in a launch a rate.
void Launch(CudaStream& stream, TileSize size, const Rates& rates, Exl3Call* call) {
  SetMemory(stream, size, call);
  LaunchExl3Prepare(*call, size != TileSize::kSmall, stream);
  const bool half = call->tiles.form == Exl3Form::kHalf;
  if (size == TileSize::kSmall) {
    int max_bits = 0;
    for (const auto& [codebook, bits_x2] : rates) max_bits = std::max(max_bits, bits_x2);
    if (half) LaunchExl3SmallHalf(*call, max_bits, stream);
    else LaunchExl3SmallInteger(*call, max_bits, stream);
    return;
  }
  for (const auto& [codebook, bits_x2] : rates) {
    if (half) LaunchExl3LargeHalf(*call, CodeRows(size), codebook, bits_x2, stream.handle());
    else LaunchExl3LargeInteger(*call, CodeRows(size), bits_x2, stream.handle());
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

bool operator==(const LaunchKey& a, const LaunchKey& b) { return !(a < b) && !(b < a); }

// Launches of the host's jobs that have `key` in some part.
void RunHostJobs(CudaStream& stream, const GroupedLinear& g, const LaunchKey& key, const Rates& rates) {
  std::vector<Exl3Job> jobs;
  for (std::size_t i = 0; i < g.specs.size(); ++i) {
    const bool member = g.specs[i]->kind == LinearSpec::Kind::kExl3 && KeyOf(*g.specs[i]) == key;
    jobs.push_back(member ? Exl3JobOf(*g.specs[i], g.blobs[i]) : Exl3Job());  // the kernels pass over a job without a rate
  }
  std::vector<RowTile> tiles[3];
  for (const RowRun& run : g.runs) {
    const Exl3Job* job = &jobs[static_cast<std::size_t>(run.job * g.parts)];
    if (std::any_of(job, job + g.parts, [](const Exl3Job& part) { return part.bits_x2 > 0; })) SplitRun(run, key.form, tiles);
  }
  for (TileSize size : {TileSize::kSmall, TileSize::kLarge64, TileSize::kLarge128}) {
    const std::vector<RowTile>& of_size = tiles[static_cast<int>(size)];
    if (of_size.empty()) continue;
    Exl3Call call = CallOf(g, key);
    call.tiles.tile_rows = RowsOf(size, key.form);
    for (const RowTile& tile : of_size) call.max_tile_rows = std::max(call.max_tile_rows, tile.rows);
    SetTiles(stream, jobs, of_size, &call.tiles);
    Launch(stream, size, rates, &call);
  }
}

// Launches of the device's jobs that have `key`, all as small tiles.
void RunDeviceJobs(CudaStream& stream, const GroupedLinear& g, const LaunchKey& key, const Rates& rates) {
  Exl3Call call = CallOf(g, key);
  const ExpertTable& table = *g.table;
  DeviceExperts& experts = call.tiles.experts;
  call.tiles.tile_rows = RowsOf(TileSize::kSmall, key.form);
  call.max_tile_rows = static_cast<std::int32_t>(std::min<std::int64_t>(g.max_group, call.tiles.tile_rows));
  experts.blob_X = table.blob_X;
  experts.form_X = table.form_X;
  experts.forms = reinterpret_cast<const std::byte*>(table.forms);
  experts.form_bytes = sizeof(ExpertSpec);
  for (int p = 0; p < g.parts; ++p) {
    experts.spec_offset[p] = reinterpret_cast<const std::byte*>(&(table.host_forms->*g.part_of[p])) - reinterpret_cast<const std::byte*>(table.host_forms);
  }
  experts.groups = g.groups;
  experts.tiles_per_group = static_cast<std::int32_t>((g.max_group + call.tiles.tile_rows - 1) / call.tiles.tile_rows);
  call.tiles.count = std::min<std::int64_t>(g.max_pairs, table.experts) * experts.tiles_per_group;
  Launch(stream, TileSize::kSmall, rates, &call);
}

}  // namespace

void RunGroupedExl3(CudaStream& stream, const GroupedLinear& g) {
  std::map<LaunchKey, Rates> launches;
  const auto add = [&](const LinearSpec& spec) {
    if (spec.kind == LinearSpec::Kind::kExl3) launches[KeyOf(spec)].insert({spec.codebook, spec.bits_x2});
  };
  for (const LinearSpec* spec : g.specs) add(*spec);
  for (int f = 0; g.table && f < g.table->num_forms; ++f) {
    for (int p = 0; p < g.parts; ++p) add(g.table->host_forms[f].*g.part_of[p]);
  }
  for (const auto& [key, rates] : launches) {
    if (g.table) RunDeviceJobs(stream, g, key, rates);
    else RunHostJobs(stream, g, key, rates);
  }
}

}  // namespace lockstep::kernels
