// Hyper-connections: projections of the streams onto coefficients, Sinkhorn, collapse with its norm, expand. Contract: docs/numerics.md section 6.
#include <algorithm>
#include <string>

#include "kernels/device/dots.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/elementwise/channels.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/elementwise/mixing_matrix.cuh"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

using contract::Add;
using contract::Div;
using contract::Fma;
using contract::Mul;

constexpr int kLaneSlot = 0;

// --- projections -----------------------------------------------------------------------------------------------------

// The 128 lanes of every dot of the rows, [rows][outputs + 1][128]; number `outputs` is the row with itself.
struct ProjectionLanes {
  float* lanes;
  int outputs;
  __device__ float* Of(std::int64_t t, int output) const { return lanes + (t * (outputs + 1) + output) * kLanesF; }
};

constexpr int kQuarterLanes = 32, kQuarters = kLanesF / kQuarterLanes;
using Tile = DotTile<DotCut<kQuarterLanes, /*rows=*/16, /*outputs of a group=*/6, /*groups=*/4, /*steps=*/4, /*stages=*/3>>;

// Block: 32 lanes (x) of 16 rows (y) and 24 outputs (z).
__global__ void __launch_bounds__(Tile::kThreads, 4) ProjectTileKernel(const __grid_constant__ DotRows d, ProjectionLanes to) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  Tile tile(d, *reinterpret_cast<Tile::Shared*>(memory), blockIdx.y * std::int64_t{Tile::kRows}, static_cast<int>(blockIdx.z) * Tile::kOutputs,
            static_cast<int>(blockIdx.x) * kQuarterLanes);
  tile.Run<true>();
  const int lane = tile.lane0 + Tile::Lane(), output0 = tile.output0 + Tile::Group() * Tile::kGroupOutputs;
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
    if (tile.row0 + r >= d.rows) break;
#pragma unroll
    for (int o = 0; o < Tile::kGroupOutputs; ++o) {
      if (output0 + o < d.outputs) to.Of(tile.row0 + r, output0 + o)[lane] = tile.sum[o][r];
    }
  }
#pragma unroll
  for (int r = 0; r < Tile::kSelfRows; ++r) {
    const std::int64_t row = tile.row0 + Tile::Group() * Tile::kSelfRows + r;
    if (blockIdx.z == 0 && row < d.rows) to.Of(row, d.outputs)[lane] = tile.self[r];
  }
}

constexpr int kFewRows = 8, kFewThreads = 128;

// Few rows. Block: 32 lanes (x) of one output (y); everything it needs is on its way at once, then a warp a row walks the lanes' chains.
__global__ void __launch_bounds__(kFewThreads) ProjectRowsKernel(const __grid_constant__ DotRows d, ProjectionLanes to) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  const int lane0 = static_cast<int>(blockIdx.x) * 32, output = blockIdx.y, n = static_cast<int>(d.n), steps = (n + kLanesF - 1) / kLanesF;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const bool self = output == d.outputs;
  auto* w = reinterpret_cast<float*>(memory);                     // [steps][32]
  auto* x = reinterpret_cast<std::uint16_t*>(w + steps * 32);  // [rows][steps][32]
  for (int i = warp; i < steps && !self; i += kFewThreads / 32) {
    const int k = i * kLanesF + lane0 + lane;
    if (k < n) CopyAsync<4>(w + i * 32 + lane, d.w + output * d.n + k);
  }
  for (int r = 0; r < d.rows; ++r) {
    for (int i = threadIdx.x / 16; i < steps; i += kFewThreads / 16) {
      const int pair = threadIdx.x % 16, k = i * kLanesF + lane0 + 2 * pair;
      std::uint16_t* into = x + (r * steps + i) * 32 + 2 * pair;
      if (n % 2 == 0) {
        if (k < n) CopyAsync<4>(into, d.x + r * d.n + k);
      } else {
        if (k < n) into[0] = d.x[r * d.n + k];
        if (k + 1 < n) into[1] = d.x[r * d.n + k + 1];
      }
    }
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  const int own_steps = (n - lane0 - lane + kLanesF - 1) / kLanesF;
  for (int r = warp; r < d.rows; r += kFewThreads / 32) {
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < own_steps; ++i) {
      const float value = BF16Value(x[(r * steps + i) * 32 + lane]);
      sum = Fma(self ? value : w[i * 32 + lane], value, sum);
    }
    to.Of(r, output)[lane0 + lane] = sum;
  }
}

void Project(CudaStream& stream, const DotRows& d, const ProjectionLanes& to) {
  if (d.rows <= kFewRows) {
    const std::int64_t steps = (d.n + kLanesF - 1) / kLanesF;
    const auto bytes = static_cast<std::size_t>(steps * (128 + d.rows * 64));
    AllowShared(ProjectRowsKernel, stream.device());
    Launch(ProjectRowsKernel, dim3(kQuarters, static_cast<unsigned>(d.outputs + 1)), kFewThreads, bytes, stream, d, to);
    return;
  }
  constexpr int kBytes = sizeof(Tile::Shared);
  AllowShared(ProjectTileKernel, stream.device());
  const dim3 grid(kQuarters, Blocks(d.rows, Tile::kRows), Blocks(d.outputs, Tile::kOutputs));
  Launch(ProjectTileKernel, grid, Tile::kThreads, kBytes, stream, d, to);
}

// --- coefficients ----------------------------------------------------------------------------------------------------

constexpr int kFinishThreads = 128;

// A block a row: folds, then a warp for the coefficients.
template <int kElements, int kN>
__global__ void __launch_bounds__(kFinishThreads) CoefficientsKernel(const __grid_constant__ HcMixArgs a, ProjectionLanes from) {
  BeginKernel();
  __shared__ float dots[2 * kMaxStreams + kMaxStreams * kMaxStreams + 1];
  const std::int64_t t = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, n = a.streams, outputs = from.outputs;
#pragma unroll 8
  for (int i = warp; i <= outputs; i += kFinishThreads / 32) {
    const float dot = FoldLanes(from.Of(t, i));
    if (lane == 0) dots[i] = dot;
  }
  __syncthreads();
  if (warp != 0) return;
  const float r = contract::Rsqrt(Add(Div(dots[outputs], static_cast<float>(n * a.hidden)), a.rms_eps));
  const auto logit = [&](int i, int kind) { return Add(Mul(Mul(dots[i], r), a.scale[kind]), a.base[i]); };
  if (lane < n) a.pre_TS[t * n + lane] = Add(contract::Sigmoid(logit(lane, 0)), a.hc_eps);
  if (a.read_out) return;
  if (lane < n) a.post_TS[t * n + lane] = Mul(2.0f, contract::Sigmoid(logit(n + lane, 1)));
  MixingMatrix<kElements, kN> mix(n);
#pragma unroll
  for (int i = 0; i < kElements; ++i) mix.c[i] = logit(2 * n + mix.Own(i), 2);
  if (a.sinkhorn_iters > 0) mix.Sinkhorn(a.sinkhorn_iters, a.hc_eps);
  mix.Store(a.mix_TSS + t * n * n);
}

// A warp a row.
template <int kElements, int kN>
__global__ void __launch_bounds__(kFinishThreads) SinkhornKernel(const __grid_constant__ SinkhornArgs a) {
  BeginKernel();
  const std::int64_t t = blockIdx.x * std::int64_t{kFinishThreads / 32} + threadIdx.x / 32;
  if (t < a.rows) FinishMix<kElements, kN>(a, t);
}

void CheckStreams(int streams) {
  if (streams > kMaxStreams) throw InputError("hyper-connections: " + std::to_string(streams) + " streams, expected at most 8 on a CUDA device");
}

void RunSinkhorn(Stream& stream, const SinkhornArgs& a) {
  CheckStreams(a.streams);
  if (a.rows == 0) return;
  const auto kernel = a.streams == 4 ? &SinkhornKernel<1, 4> : a.streams * a.streams <= 32 ? &SinkhornKernel<1, 0> : &SinkhornKernel<2, 0>;
  Launch(kernel, Blocks(a.rows, kFinishThreads / 32), kFinishThreads, 0, AsCuda(stream), a);
  CheckLaunch("sinkhorn");
}

void RunHcMix(Stream& s, const HcMixArgs& a) {
  CheckStreams(a.streams);
  if (a.rows == 0) return;
  CudaStream& stream = AsCuda(s);
  const int outputs = a.read_out ? a.streams : 2 * a.streams + a.streams * a.streams;
  const std::int64_t width = a.streams * a.hidden;
  constexpr std::int64_t kRowsTogether = 65536;  // of the lanes in memory, and of the grid
  const std::int64_t most = std::min(a.rows, kRowsTogether);
  const ProjectionLanes lanes{reinterpret_cast<float*>(stream.Scratch(kLaneSlot, static_cast<std::size_t>(most * (outputs + 1) * kLanesF) * sizeof(float))), outputs};
  for (std::int64_t begin = 0; begin < a.rows; begin += kRowsTogether) {
    HcMixArgs part = a;
    part.rows = std::min(kRowsTogether, a.rows - begin);
    part.stream_TSE += begin * width;
    part.pre_TS += begin * a.streams;
    if (!a.read_out) part.post_TS += begin * a.streams, part.mix_TSS += begin * a.streams * a.streams;
    Project(stream, {part.stream_TSE, part.rows, a.fn, outputs, width}, lanes);
    const auto coefficients = a.streams == 4 ? &CoefficientsKernel<1, 4> : a.streams * a.streams <= 32 ? &CoefficientsKernel<1, 0> : &CoefficientsKernel<2, 0>;
    Launch(coefficients, static_cast<unsigned>(part.rows), kFinishThreads, 0, stream, part, lanes);
  }
  CheckLaunch("hc_mix");
}

// --- streams ---------------------------------------------------------------------------------------------------------

constexpr int kCollapseThreads = 256;

// A block a row; the collapsed row waits in shared memory for its norm.
template <int kWidth>
__global__ void __launch_bounds__(kCollapseThreads) CollapseNormKernel(const __grid_constant__ HcCollapseNormArgs a) {
  BeginKernel();
  extern __shared__ __align__(16) std::uint16_t row[];
  __shared__ float lanes[kLanesF];
  const std::int64_t t = blockIdx.x;
  const int n = static_cast<int>(a.hidden);
  const std::uint16_t* stream = a.stream_TSE + t * a.streams * a.hidden;
  const float* pre = a.pre_TS + t * a.streams;
#pragma unroll 2
  for (int d = kWidth * threadIdx.x; d < n; d += kWidth * kCollapseThreads) {
    Channels<kWidth> x[kMaxStreams], sum;
#pragma unroll
    for (int s = 0; s < kMaxStreams; ++s) {
      if (s < a.streams) x[s] = Channels<kWidth>::Load(stream + s * a.hidden + d);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum.value[i] = Mul(pre[0], x[0].value[i]);
#pragma unroll
    for (int s = 1; s < kMaxStreams; ++s) {
      if (s >= a.streams) break;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum.value[i] = Fma(pre[s], x[s].value[i], sum.value[i]);
    }
    sum.Store(row + d);
  }
  __syncthreads();
  if (threadIdx.x < kLanesF) {
    float sum = 0.0f;
#pragma unroll 8
    for (int k = threadIdx.x; k < n; k += kLanesF) {
      const float value = BF16Value(row[k]);
      sum = Fma(value, value, sum);
    }
    lanes[threadIdx.x] = sum;
  }
  __syncthreads();
  const float r = contract::Rsqrt(Add(Div(FoldLanes(lanes), static_cast<float>(a.hidden)), a.eps));
  for (int d = kWidth * threadIdx.x; d < n; d += kWidth * kCollapseThreads) {
    Channels<kWidth> x = Channels<kWidth>::Load(row + d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x.value[i] = Mul(Mul(x.value[i], r), a.norm_weight ? a.norm_weight[d + i] : 1.0f);
    x.Store(a.x_TE + t * a.hidden + d);
  }
}

void RunHcCollapseNorm(Stream& stream, const HcCollapseNormArgs& a) {
  LOCKSTEP_CHECK(a.streams <= kMaxStreams);
  if (a.rows == 0) return;
  const auto kernel = a.hidden % 8 == 0 ? &CollapseNormKernel<8> : &CollapseNormKernel<1>;
  const auto bytes = static_cast<std::size_t>(a.hidden) * 2;
  CudaStream& cuda = AsCuda(stream);
  AllowShared(kernel, cuda.device());
  Launch(kernel, static_cast<unsigned>(a.rows), kCollapseThreads, bytes, cuda, a);
  CheckLaunch("hc_collapse_norm");
}

constexpr int kExpandThreads = 128;

// Block: a stretch of channels (y) of a row (x).
template <int kWidth>
__global__ void __launch_bounds__(kExpandThreads) ExpandKernel(const __grid_constant__ HcExpandArgs a) {
  BeginKernel();
  const std::int64_t t = blockIdx.x, d = kWidth * (blockIdx.y * std::int64_t{kExpandThreads} + threadIdx.x);
  if (d >= a.hidden) return;
  const int n = a.streams;
  std::uint16_t* stream = a.stream_TSE + t * n * a.hidden + d;
  const float *post = a.post_TS + t * n, *mix = a.mix_TSS + t * n * n;
  const Channels<kWidth> f = Channels<kWidth>::Load(a.f_TE + t * a.hidden + d);
  Channels<kWidth> x[kMaxStreams];
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) {
    if (j < n) x[j] = Channels<kWidth>::Load(stream + j * a.hidden);
  }
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    if (k >= n) break;
    Channels<kWidth> sum;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum.value[i] = Mul(post[k], f.value[i]);
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j >= n) break;
      const float c = mix[j * n + k];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum.value[i] = Fma(c, x[j].value[i], sum.value[i]);
    }
    sum.Store(stream + k * a.hidden);
  }
}

void RunHcExpand(Stream& stream, const HcExpandArgs& a) {
  LOCKSTEP_CHECK(a.streams <= kMaxStreams);
  if (a.rows == 0) return;
  const int width = a.hidden % 8 == 0 ? 8 : 1;
  const dim3 grid(static_cast<unsigned>(a.rows), Blocks(a.hidden, width * kExpandThreads));
  if (width == 8) Launch(ExpandKernel<8>, grid, kExpandThreads, 0, AsCuda(stream), a);
  else Launch(ExpandKernel<1>, grid, kExpandThreads, 0, AsCuda(stream), a);
  CheckLaunch("hc_expand");
}

}  // namespace

Kernel<HcMixArgs> CudaHcMix() { return {&RunHcMix, "hc_mix/F"}; }
Kernel<SinkhornArgs> CudaSinkhorn() { return {&RunSinkhorn, "sinkhorn/F"}; }
Kernel<HcCollapseNormArgs> CudaHcCollapseNorm() { return {&RunHcCollapseNorm, "hc_collapse_norm/F"}; }
Kernel<HcExpandArgs> CudaHcExpand() { return {&RunHcExpand, "hc_expand/F"}; }

}  // namespace lockstep::kernels
