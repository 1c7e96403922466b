// EXL3 products of many rows: prefill. A block takes 128 outputs and one tile of rows and decodes every weight once for them. Tiles of 64 rows, two blocks a
// multiprocessor, of which one multiplies while the other begins or ends; those of 128 rows by exl3_large_turns.cuh.
#pragma once

#include "kernels/linear/exl3_large_launch.cuh"
#include "kernels/linear/exl3_large_sums.cuh"
#include "kernels/linear/exl3_large_turns.cuh"
#include "kernels/linear/exl3_relay.cuh"

namespace lockstep::kernels {

inline constexpr int kHalfTileRows = 64;

// Block (128 outputs, tile, part).
template <int kB2, WeightForm kWeight>
__device__ void LargeProduct(const Exl3Call& call, const Exl3Job& job, const RowTile& tile, std::int64_t index, int part) {
  using Sums = LargeSums<kB2, kHalfTileRows, kWeight>;
  using Shared = LargeShared<kB2, kHalfTileRows>;
  const std::int64_t slot = call.tiles.LargeSlotOf(index, part), column = blockIdx.x * std::int64_t{kExl3Columns};
  extern __shared__ __align__(1024) std::byte large_shared[];
  LargeStream<kB2, kHalfTileRows, Sums::kInteger> stream(large_shared + Shared::kBarriers);
  stream.Set(call, job, slot, column);
  if (TakesInputs(call.relay) && threadIdx.x == 0) AwaitCount(call.relay.inputs + index, PreparedBlocks(tile.rows));
  __syncthreads();
  Sums sums(large_shared);
  sums.Begin(stream);
  sums.Multiply(stream, call.in);

  const TileEpilogue<Sums::kInteger> epilogue(call, job, part, column);
  __syncthreads();  // ring and folds are read
  auto* result = reinterpret_cast<float*>(large_shared);
  StoreResult(sums.results(), result);
  __syncthreads();
  epilogue.Run(tile, result, call.z + slot, static_cast<int>(threadIdx.x) / 32, kLargeThreads / 32);
  if (MakesInputs(call.relay)) {
    __syncthreads();
    if (threadIdx.x == 0) CountUp(call.relay.outputs + index);
  }
}

template <int kB2, WeightForm kWeight>
__global__ void __launch_bounds__(kLargeThreads, 2) Exl3LargeKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  BeginLarge(call.waits);
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z);
  RowTile tile;
  Exl3Job job;
  const bool found = call.tiles.Find(index, part, &tile, &job) && blockIdx.x * kExl3Columns < job.out;
  if (found && IsOfRate<kB2, kWeight>(job)) LargeProduct<kB2, kWeight>(call, job, tile, index, part);
  EndLarge(call.waits);
}

// Tiles of 64 or 128 rows.
template <WeightForm kWeight>
void LaunchLargeOfRows(const Exl3Call& call, int tile_rows, int bits_x2, CudaStream& stream) {
  LaunchOfRate(bits_x2, [&](auto rate) {
    constexpr int kB2 = decltype(rate)::value;
    if (tile_rows == kHalfTileRows) {
      LaunchOverTiles(Exl3LargeKernel<kB2, kWeight>, kHalfTileRows, kLargeThreads, LargeShared<kB2, kHalfTileRows>::kBytes, call, stream);
    } else {
      LaunchInTurns<kB2, kWeight>(call, stream);
    }
  });
}

}  // namespace lockstep::kernels
