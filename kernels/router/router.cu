// Expert choice: few rows in one launch, of many the scores by tiles of lanes, then a warp a row chooses. Contract: docs/numerics.md section 6, Router.
#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/device/dots.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/pair_groups/pair_groups_cuda.h"
#include "kernels/router/router_choice.cuh"
#include "kernels/router/router_cuda.h"
#include "kernels/router/router_few.cuh"
#include "kernels/router/router_many.cuh"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

constexpr int kScoreSlot = 0;

using Tile = DotTile<DotCut<kLanesF, /*rows=*/24, /*outputs of a group=*/8, /*groups=*/2, /*steps=*/2, /*stages=*/4>>;
constexpr int kDotStride = kLanesF + 4;  // rows of lanes that threads fold side by side lie in other banks
constexpr int kTileBytes = std::max<int>(sizeof(Tile::Shared), Tile::kRows * Tile::kOutputs * kDotStride * sizeof(float));

// Block: 16 experts (x) of 24 rows (y), of any length and on any architecture.
__global__ void __launch_bounds__(Tile::kThreads, 1) ScoreTileKernel(const __grid_constant__ DotRows d, RouterScores to) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  Tile tile(d, *reinterpret_cast<Tile::Shared*>(memory), blockIdx.y * std::int64_t{Tile::kRows}, static_cast<int>(blockIdx.x) * Tile::kOutputs, 0);
  tile.Run<false>();
  __syncthreads();
  auto* lanes = reinterpret_cast<float*>(memory);  // [outputs][rows][128]
#pragma unroll
  for (int o = 0; o < Tile::kGroupOutputs; ++o) {
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) lanes[((Tile::Group() * Tile::kGroupOutputs + o) * Tile::kRows + r) * kDotStride + Tile::Lane()] = tile.sum[o][r];
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < Tile::kRows * Tile::kOutputs; i += Tile::kThreads) {
    const std::int64_t row = tile.row0 + i / Tile::kOutputs;
    const int o = i % Tile::kOutputs, e = tile.output0 + o;
    if (row < d.rows && e < d.outputs) to.Store(row, e, FoldRow(lanes + (o * Tile::kRows + i / Tile::kOutputs) * kDotStride));
  }
}

void ScoreTiles(CudaStream& stream, const DotRows& d, const RouterScores& to) {
  static_assert(RouterTile::kRows == Tile::kRows && RouterTile::kExperts == Tile::kOutputs && RouterTile::kThreads == Tile::kThreads);
  const bool bulk = stream.overlaps() && RouterTile::Takes(d);
  const auto kernel = bulk ? &RouterTileKernel : &ScoreTileKernel;
  const int bytes = bulk ? static_cast<int>(sizeof(RouterTile::Shared)) : kTileBytes;
  AllowShared(kernel, stream.device());
  constexpr std::int64_t kMaxRows = 32768 * std::int64_t{Tile::kRows};  // of a grid
  for (std::int64_t begin = 0; begin < d.rows; begin += kMaxRows) {
    DotRows part = d;
    part.x += begin * d.n;
    part.rows = d.rows - begin < kMaxRows ? d.rows - begin : kMaxRows;
    const dim3 grid(Blocks(d.outputs, Tile::kOutputs), Blocks(part.rows, Tile::kRows));
    Launch(kernel, grid, Tile::kThreads, static_cast<std::size_t>(bytes), stream, part, RouterScores{to.data + begin * to.experts, to.experts});
  }
}

constexpr int kChooseThreads = 32;

// A warp a row.
template <int kItems>
__global__ void __launch_bounds__(kChooseThreads) ChooseKernel(const __grid_constant__ RouterArgs a, const float* score_TX) {
  BeginKernel();
  __shared__ std::int32_t chosen[kMaxTopK], expert[kMaxTopK];
  __shared__ float weight[kMaxTopK];
  const std::int64_t t = blockIdx.x;
  ChooseExperts<kItems>(a, t, {score_TX + t * a.experts, a.bias_X, chosen, expert, weight});
}

// Experts that a thread of the choosing warp has; calls `body` with them as a constant.
template <class Body>
void WithItems(int experts, const Body& body) {
  if (experts <= 256) body(std::integral_constant<int, 8>());
  else if (experts <= 384) body(std::integral_constant<int, 12>());
  else body(std::integral_constant<int, kMaxExperts / 32>());
}

void RunManyRows(CudaStream& stream, const RouterArgs& a) {
  const RouterScores scores{reinterpret_cast<float*>(stream.Scratch(kScoreSlot, static_cast<std::size_t>(a.rows * a.experts) * sizeof(float))), a.experts};
  ScoreTiles(stream, {a.x_TE, a.rows, a.gate_XE, a.experts, a.hidden}, scores);
  WithItems(a.experts, [&](auto items) { Launch(ChooseKernel<items()>, static_cast<unsigned>(a.rows), kChooseThreads, 0, stream, a, scores.data); });
}

template <int kRows>
void RunFewRows(CudaStream& stream, const FewRowsRouter& call) {
  WithItems(call.router.experts, [&](auto items) {
    const auto kernel = &FewRowsRouterKernel<kRows, items()>;
    const std::size_t bytes = call.shared_bytes();
    AllowShared(kernel, stream.device());
    Launch(kernel, static_cast<unsigned>(call.score_blocks() + call.mix.rows + call.router.rows), FewRowsRouter::kThreads, bytes, stream, call);
    stream.SetLastLaunch({.waits_first = true});
  });
}

// `groups`: null, or those of a single row. `mix`: of few rows, or without any.
void Run(CudaStream& stream, const RouterArgs& a, const PairGroupsArgs* groups, const SinkhornArgs& mix) {
  if (a.experts > kMaxExperts) throw InputError("router: " + std::to_string(a.experts) + " experts, expected at most 1024 on a CUDA device");
  if (a.rows == 0) return;
  if (!FewRowsRouter::Takes(a)) return RunManyRows(stream, a);
  FewRowsRouter call{a, groups ? *groups : PairGroupsArgs{}, nullptr, mix};
  call.words = reinterpret_cast<LaneWord*>(stream.ZeroedScratch(static_cast<std::size_t>(a.rows * a.experts) * sizeof(LaneWord)));
  if (a.rows == 1) RunFewRows<1>(stream, call);
  else if (a.rows <= 4) RunFewRows<4>(stream, call);
  else RunFewRows<8>(stream, call);
}

void RunRouter(Stream& stream, const RouterArgs& a) {
  Run(AsCuda(stream), a, nullptr, {});
  CheckLaunch("router");
}

void RunRoute(Stream& stream, const RouteArgs& a) {
  const bool together = a.router.rows == 1 && a.groups.rows == 1 && FewRowsRouter::Takes(a.router);
  const bool mixes = FewRowsRouter::Takes(a.router) && a.router.rows > 0 && a.mix.rows <= FewRowsRouter::kMaxRows && a.mix.streams == FewRowsRouter::kStreams;
  Run(AsCuda(stream), a.router, together ? &a.groups : nullptr, mixes ? a.mix : SinkhornArgs{});
  if (!mixes) CudaSinkhorn()(stream, a.mix);
  if (!together) CudaPairGroups()(stream, a.groups);
  CheckLaunch("route");
}

}  // namespace

Kernel<RouterArgs> CudaRouter() { return {&RunRouter, "router/F"}; }
Kernel<RouteArgs> CudaRoute() { return {&RunRoute, "route/F"}; }

}  // namespace lockstep::kernels
