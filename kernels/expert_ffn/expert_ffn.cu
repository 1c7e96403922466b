// Experts on the device: gate and up of all jobs, the clamped SwiGLU, down of all jobs.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/expert_ffn/expert_ffn_cuda.h"
#include "kernels/linear/linear_cuda.h"

namespace lockstep::kernels {
namespace {

enum Slot { kGateUpSlot = 6, kSwigluTilesSlot };

struct ExpertRows {};  // the tiles alone say which rows

// gate[row] = bf16([weight *] silu(min(gate, L)) * clamp(up, -L, L)) for every row of the jobs.
__global__ void SwigluKernel(const __grid_constant__ JobList<ExpertRows> list, std::uint16_t* gate, const std::uint16_t* up, std::int64_t width,
                             const float* weight, float limit) {
  const RowTile tile = list.Tile(blockIdx.y);
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= tile.rows * width) return;
  const std::int64_t row = tile.begin + i / width, at = row * width + i % width;
  float a = BF16Value(gate[at]), b = BF16Value(up[at]);
  if (limit > 0.0f) {
    a = a > limit ? limit : a;
    b = b > limit ? limit : b < -limit ? -limit : b;
  }
  float value = contract::Mul(contract::Silu(a), b);
  if (weight) value = contract::Mul(weight[row], value);
  gate[at] = BF16Bits(value);
}

void LaunchSwiglu(CudaStream& stream, const std::vector<RowTile>& tiles, std::uint16_t* gate, const std::uint16_t* up, std::int64_t width,
                  const ExpertFfnArgs& a) {
  constexpr std::int64_t kMaxGridY = 65535;
  JobList<ExpertRows> list;
  list.num_tiles = static_cast<std::int64_t>(tiles.size());
  if (tiles.size() <= JobList<ExpertRows>::kSmall) {
    std::copy(tiles.begin(), tiles.end(), list.small_tiles);
  } else {
    list.tiles = reinterpret_cast<const RowTile*>(stream.Upload(kSwigluTilesSlot, tiles.data(), tiles.size() * sizeof(RowTile)));
  }
  for (std::int64_t begin = 0; begin < list.num_tiles; begin += kMaxGridY) {
    JobList<ExpertRows> part = list;
    if (part.tiles) part.tiles += begin;
    const auto count = static_cast<unsigned>(std::min(kMaxGridY, list.num_tiles - begin));
    SwigluKernel<<<dim3(Blocks(16 * width, 256), count), 256, 0, stream.handle()>>>(part, gate, up, width, a.weight, a.limit);
  }
  CheckLaunch("swiglu");
}

void RunExpertFfn(Stream& s, const ExpertFfnArgs& a) {
  CudaStream& stream = AsCuda(s);
  GroupedLinear g;
  std::vector<RowTile> tiles;
  for (std::int64_t j = 0; j < a.num_jobs; ++j) {
    const ExpertJob& job = a.jobs[j];
    for (std::int64_t begin = 0; begin < job.rows; begin += 16) {
      tiles.push_back({static_cast<std::int32_t>(j), static_cast<std::int32_t>(std::min<std::int64_t>(16, job.rows - begin)), job.begin + begin});
    }
    g.x_rows = std::max(g.x_rows, job.begin + job.rows);
    g.blobs.push_back(job.blob);
    g.specs.push_back(&job.spec->gate);
  }
  if (tiles.empty()) return;
  // Gate and up as one call: the up jobs' rows follow the gate jobs' rows.
  const std::int64_t width = a.jobs[0].spec->gate.out_features, rows = g.x_rows;
  auto* gate = reinterpret_cast<std::uint16_t*>(stream.Scratch(kGateUpSlot, static_cast<std::size_t>(2 * rows * width) * 2));
  g.tiles = tiles;
  for (std::int64_t j = 0; j < a.num_jobs; ++j) {
    g.blobs.push_back(a.jobs[j].blob);
    g.specs.push_back(&a.jobs[j].spec->up);
  }
  for (RowTile tile : tiles) g.tiles.push_back({tile.job + static_cast<std::int32_t>(a.num_jobs), tile.rows, tile.begin + rows});
  g.total_rows = 2 * rows;
  g.x = a.x;
  g.x_stride = a.hidden;
  g.x_index = a.token;
  g.y_bf16 = gate;
  g.y_stride = width;
  g.overflow = a.overflow;
  RunGroupedLinear(stream, g);

  LaunchSwiglu(stream, tiles, gate, gate + rows * width, width, a);

  g.blobs.resize(static_cast<std::size_t>(a.num_jobs));
  g.specs.clear();
  for (std::int64_t j = 0; j < a.num_jobs; ++j) g.specs.push_back(&a.jobs[j].spec->down);
  g.tiles = std::move(tiles);
  g.total_rows = rows;
  g.x = gate;
  g.x_stride = width;
  g.x_index = nullptr;
  g.y_bf16 = a.y;
  g.y_stride = a.hidden;
  RunGroupedLinear(stream, g);
}

}  // namespace

Kernel<ExpertFfnArgs> CudaExpertFfn() { return {&RunExpertFfn, "expert_ffn/H(sm90)+I+F"}; }

}  // namespace lockstep::kernels
