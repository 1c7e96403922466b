// Expert choice: scores of few rows by a warp an expert, of many by tiles of lanes; then a warp a row chooses. Contract: docs/numerics.md section 6, Router.
#include "kernels/contract/total_order.h"
#include "kernels/device/dots.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/router/router_cuda.h"

namespace lockstep::kernels {
namespace {

constexpr int kMaxTopK = 64;
constexpr int kScoreSlot = 0;

struct Scores {
  float* data;  // [rows][experts]
  int experts;
  __device__ void Store(std::int64_t t, int e, float dot) const { data[t * experts + e] = contract::SqrtSoftplus(dot); }
};

// --- few rows --------------------------------------------------------------------------------------------------------

constexpr int kFewThreads = 64;
constexpr int kBatch = 16;  // loads of a weight row under way together

// A warp an expert, four neighbouring lanes a thread; n is a multiple of 4.
template <int kRows>
__global__ void __launch_bounds__(kFewThreads, 1) ScoreRowsKernel(const __grid_constant__ DotRows d, Scores to) {
  BeginKernel();
  const int e = blockIdx.x * (kFewThreads / 32) + threadIdx.x / 32, lane = threadIdx.x & 31, n = static_cast<int>(d.n);
  if (e >= d.outputs) return;
  const float* w = d.w + e * d.n;
  float sum[kRows][4] = {};
  for (int k0 = 4 * lane; k0 < n; k0 += kBatch * kLanesF) {
    float4 weight[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (k0 + i * kLanesF < n) weight[i] = __ldg(reinterpret_cast<const float4*>(w + k0 + i * kLanesF));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (k0 + i * kLanesF >= n) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 x = WidenFour(*reinterpret_cast<const uint2*>(d.x + min(std::int64_t{r}, d.rows - 1) * d.n + k0 + i * kLanesF));
        sum[r][0] = contract::Fma(weight[i].x, x.x, sum[r][0]), sum[r][1] = contract::Fma(weight[i].y, x.y, sum[r][1]);
        sum[r][2] = contract::Fma(weight[i].z, x.z, sum[r][2]), sum[r][3] = contract::Fma(weight[i].w, x.w, sum[r][3]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float dot = FoldQuads(sum[r]);
    if (lane == 0 && r < d.rows) to.Store(r, e, dot);
  }
}

// --- many rows -------------------------------------------------------------------------------------------------------

using Tile = DotTile<kLanesF, 1>;

// Block: 24 experts (x) of 16 rows (y).
__global__ void __launch_bounds__(Tile::kThreads, 1) ScoreTileKernel(const __grid_constant__ DotRows d, Scores to) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  Tile tile(d, *reinterpret_cast<Tile::Shared*>(memory), blockIdx.y * std::int64_t{Tile::kRows}, static_cast<int>(blockIdx.x) * Tile::kOutputs, 0);
  tile.Run<false>();
  auto* lanes = reinterpret_cast<float*>(memory) + Tile::Group() * Tile::kRows * kLanesF;  // [rows][128] of the group
  const int e0 = tile.output0 + Tile::Group() * Tile::kGroupOutputs, lane = Tile::Lane();
#pragma unroll
  for (int o = 0; o < Tile::kGroupOutputs; ++o) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) lanes[r * kLanesF + lane] = tile.sum[o][r];
    __syncthreads();
#pragma unroll
    for (int r = lane / 32; r < Tile::kRows; r += kLanesF / 32) {
      const float dot = FoldLanes(lanes + r * kLanesF);
      if (lane % 32 == 0 && tile.row0 + r < d.rows && e0 + o < d.outputs) to.Store(tile.row0 + r, e0 + o, dot);
    }
  }
}

void Score(CudaStream& stream, const DotRows& d, const Scores& to) {
  if (d.rows <= 8 && d.n % 4 == 0) {
    const auto kernel = d.rows == 1 ? &ScoreRowsKernel<1> : d.rows <= 2 ? &ScoreRowsKernel<2> : d.rows <= 4 ? &ScoreRowsKernel<4> : &ScoreRowsKernel<8>;
    Launch(kernel, Blocks(d.outputs, kFewThreads / 32), kFewThreads, 0, stream, d, to);
    return;
  }
  constexpr int kBytes = sizeof(Tile::Shared);
  CheckCuda(cudaFuncSetAttribute(ScoreTileKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "router shared memory");
  constexpr std::int64_t kMaxRows = 32768 * std::int64_t{Tile::kRows};  // of a grid
  for (std::int64_t begin = 0; begin < d.rows; begin += kMaxRows) {
    DotRows part = d;
    part.x += begin * d.n;
    part.rows = d.rows - begin < kMaxRows ? d.rows - begin : kMaxRows;
    const dim3 grid(Blocks(d.outputs, Tile::kOutputs), Blocks(part.rows, Tile::kRows));
    Launch(ScoreTileKernel, grid, Tile::kThreads, kBytes, stream, part, Scores{to.data + begin * to.experts, to.experts});
  }
}

// --- choice ----------------------------------------------------------------------------------------------------------

// The largest rank key of a warp.
__device__ unsigned long long MaxKey(unsigned long long key) {
  for (int stride = 16; stride > 0; stride /= 2) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, key, stride);
    key = other > key ? other : key;
  }
  return key;
}

constexpr int kChooseThreads = 32;

// A warp a row.
__global__ void __launch_bounds__(kChooseThreads) ChooseKernel(const __grid_constant__ RouterArgs a, const float* score_TX) {
  BeginKernel();
  __shared__ int chosen[kMaxTopK], sorted[kMaxTopK];
  const std::int64_t t = blockIdx.x;
  const int lane = threadIdx.x;
  const float* score = score_TX + t * a.experts;
  bool nan = false;
  for (int e = lane; e < a.experts; e += 32) nan = nan || score[e] != score[e] || (a.bias_X && a.bias_X[e] != a.bias_X[e]);
  nan = __any_sync(0xffffffffu, nan);
  if (a.tid2eid) {
    for (int i = lane; i < a.top_k; i += 32) chosen[i] = static_cast<int>(a.tid2eid[static_cast<std::int64_t>(a.ids[t]) * a.top_k + i]);
  } else {
    unsigned long long last = ~0ull;  // keys are distinct: each round takes the largest below the last one
    for (int i = 0; i < a.top_k; ++i) {
      unsigned long long best = 0;
      for (int e = lane; e < a.experts; e += 32) {
        const float value = a.bias_X ? contract::Add(score[e], a.bias_X[e]) : score[e];
        const unsigned long long key = contract::RankKey(value, static_cast<std::uint32_t>(e));
        if (key < last && key > best) best = key;
      }
      last = MaxKey(best);
      if (lane == 0) chosen[i] = static_cast<int>(contract::IndexOfRankKey(last));
    }
  }
  __syncwarp();
  for (int i = lane; i < a.top_k; i += 32) {  // ascending ids; a hash layer may name an expert twice
    int place = 0;
    for (int k = 0; k < a.top_k; ++k) place += chosen[k] < chosen[i] || (chosen[k] == chosen[i] && k < i) ? 1 : 0;
    sorted[place] = chosen[i];
  }
  __syncwarp();
  float sum = score[sorted[0]];
  for (int i = 1; i < a.top_k; ++i) sum = contract::Add(sum, score[sorted[i]]);
  if (a.epsilon != 0.0f) sum = contract::Add(sum, a.epsilon);
  for (int i = lane; i < a.top_k; i += 32) {
    const float s = score[sorted[i]];
    a.experts_TK[t * a.top_k + i] = nan ? -1 : sorted[i];
    if (!nan) a.weights_TK[t * a.top_k + i] = contract::Mul(a.normalize ? contract::Div(s, sum) : s, a.scaling);
  }
}

void RunRouter(Stream& s, const RouterArgs& a) {
  if (a.rows == 0) return;
  CudaStream& stream = AsCuda(s);
  const Scores scores{reinterpret_cast<float*>(stream.Scratch(kScoreSlot, static_cast<std::size_t>(a.rows * a.experts) * sizeof(float))), a.experts};
  Score(stream, {a.x_TE, a.rows, a.gate_XE, a.experts, a.hidden}, scores);
  Launch(ChooseKernel, static_cast<unsigned>(a.rows), kChooseThreads, 0, stream, a, scores.data);
  CheckLaunch("router");
}

}  // namespace

Kernel<RouterArgs> CudaRouter() { return {&RunRouter, "router/F"}; }

}  // namespace lockstep::kernels
