// Experts on the device: gate and up of all jobs, the clamped SwiGLU, down of all jobs.
#include <algorithm>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/expert_ffn/expert_ffn_cuda.h"
#include "kernels/linear/linear_cuda.h"

namespace lockstep::kernels {
namespace {

enum Slot { kGateSlot = 6, kUpSlot, kTileSlot };

// gate[row] = bf16([weight *] silu(min(gate, L)) * clamp(up, -L, L)) for the rows of a tile.
__global__ void SwigluKernel(const RowTile* tiles, std::uint16_t* gate, const std::uint16_t* up, std::int64_t width, const float* weight, float limit) {
  const RowTile tile = tiles[blockIdx.x];
  for (std::int64_t i = threadIdx.x; i < tile.rows * width; i += blockDim.x) {
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
}

void RunExpertFfn(Stream& s, const ExpertFfnArgs& a) {
  CudaStream& stream = AsCuda(s);
  GroupedLinear g;
  for (std::int64_t j = 0; j < a.num_jobs; ++j) {
    const ExpertJob& job = a.jobs[j];
    for (std::int64_t begin = 0; begin < job.rows; begin += 16) {
      g.tiles.push_back({static_cast<std::int32_t>(j), static_cast<std::int32_t>(std::min<std::int64_t>(16, job.rows - begin)), job.begin + begin});
    }
    g.total_rows = std::max(g.total_rows, job.begin + job.rows);
    g.blobs.push_back(job.blob);
  }
  if (g.tiles.empty()) return;
  const std::int64_t width = a.jobs[0].spec->gate.out_features;
  auto* gate = reinterpret_cast<std::uint16_t*>(stream.Scratch(kGateSlot, static_cast<std::size_t>(g.total_rows * width) * 2));
  auto* up = reinterpret_cast<std::uint16_t*>(stream.Scratch(kUpSlot, static_cast<std::size_t>(g.total_rows * width) * 2));
  const auto run = [&](const LinearSpec ExpertSpec::* part, const std::uint16_t* x, std::int64_t x_stride, const std::int32_t* index, std::uint16_t* y,
                       std::int64_t y_stride) {
    g.specs.clear();
    for (std::int64_t j = 0; j < a.num_jobs; ++j) g.specs.push_back(&(a.jobs[j].spec->*part));
    g.x = x;
    g.x_stride = x_stride;
    g.x_index = index;
    g.y_bf16 = y;
    g.y_stride = y_stride;
    g.overflow = a.overflow;
    RunGroupedLinear(stream, g);
  };
  run(&ExpertSpec::gate, a.x, a.hidden, a.token, gate, width);
  run(&ExpertSpec::up, a.x, a.hidden, a.token, up, width);
  const auto* tiles = reinterpret_cast<const RowTile*>(stream.Upload(kTileSlot, g.tiles.data(), g.tiles.size() * sizeof(RowTile)));
  SwigluKernel<<<static_cast<unsigned>(g.tiles.size()), 256, 0, stream.handle()>>>(tiles, gate, up, width, a.weight, a.limit);
  CheckLaunch("swiglu");
  run(&ExpertSpec::down, gate, width, nullptr, a.y, a.hidden);
}

}  // namespace

Kernel<ExpertFfnArgs> CudaExpertFfn() { return {&RunExpertFfn, "expert_ffn/H(sm90)+I+F"}; }

}  // namespace lockstep::kernels
