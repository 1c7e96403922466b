// EXL3 products of many rows of int16 codes, which are two code rows each, so that one decoded weight serves twice as many code rows as exl3_large.cuh
// has registers for. A block takes 128 outputs and one tile and decodes the weights of a whole 128-block as the A operand of the tensor cores; groups of
// code rows are B, one after the other. While the tensor cores work on one group, the warps add the sums of the group before and decode weights of the
// next 128-block. Segments follow each other and fold in shared memory.
#pragma once

#include "kernels/contract/segments.h"
#include "kernels/linear/exl3_large_launch.cuh"
#include "kernels/linear/exl3_relay.cuh"
#include "kernels/linear/exl3_tall_stream.cuh"
#include "kernels/linear/exl3_tall_sums.cuh"
#include "kernels/linear/tile_product.cuh"
#include "kernels/linear/trellis_cuda.cuh"

namespace lockstep::kernels {

using BlockWeights = std::uint32_t[8][4];  // A fragments of a warp's strip, 128 inputs

// The k16 steps kFrom .. kTo-1 of a 128-block.
template <int kB2, int kFrom, int kTo>
__device__ void DecodeSteps(const RunReader<kB2>& reader, const std::byte* weights, BlockWeights& a) {
  constexpr int kOther = -12;  // four permutations, sixteen multiplications
  const auto* words = reinterpret_cast<const std::uint32_t*>(weights + threadIdx.x / 32 * 128 * kB2);
#pragma unroll
  for (int step = kFrom; step < kTo; ++step) {
    std::uint32_t state[8];
    reader.template States<kOther>(words + step * 4 * kB2, state);
    a[step][0] = DecodePair<WeightForm::kMul1Integer>(state[0], state[1]);
    a[step][1] = DecodePair<WeightForm::kMul1Integer>(state[4], state[5]);
    a[step][2] = DecodePair<WeightForm::kMul1Integer>(state[2], state[3]);
    a[step][3] = DecodePair<WeightForm::kMul1Integer>(state[6], state[7]);
  }
}

// What a thread that multiplies keeps of its tile: sums of all groups, block sums of the group under way and of that before.
template <int kB2, class Tile>
class TallSums {
 public:
  using Product = TileProduct<Tile::kN>;

  __device__ TallSums(const TallInputs<kB2, Tile>& inputs, TallStream<kB2, Tile>& stream, std::byte* folds)
      : inputs_(inputs), stream_(stream), folds_(folds), segment_end_(contract::FirstBlock(inputs.blocks, 1)) {
    Clear<Tile>(y);
  }

  // A 128-block with weights `now`; decodes the next one's into `next`, even past the end: its bytes are old, its fragments are not used. Nothing is
  // under way where it begins and ends, or the assembler would not let the products of a group run while sums of another are read.
  __device__ void Step(int b, const BlockWeights& now, BlockWeights& next) {
    Product::Start(block_[0], now, stream_.NextUnit(inputs_, b, 0), /*accumulate=*/false);
    FoldSegmentsBefore(b);
    const std::byte* weights = b + 1 < inputs_.blocks ? stream_.NextWeights(inputs_, b + 1) : stream_.weights();
    Unrolled<Tile::kGroups>([&](auto of) {
      constexpr int kGroup = decltype(of)::value;
      constexpr bool kLast = kGroup + 1 == Tile::kGroups;
      float(&sum)[Tile::kSums] = block_[kGroup % 2];
      if constexpr (!kLast) Product::Start(block_[(kGroup + 1) % 2], now, stream_.NextUnit(inputs_, b, kGroup + 1), /*accumulate=*/false);
      DecodeSteps<kB2, kGroup * 8 / Tile::kGroups, (kGroup + 1) * 8 / Tile::kGroups>(reader_, weights, next);
      if constexpr (kLast) {
        stream_.FreeWeights();
        Product::Wait(sum, now);
      } else {
        Product::WaitForPrevious(now);
        ReadFromHere(sum);
      }
      AddBlock<Tile>(stream_.scales(), sum, y[kGroup]);
      stream_.FreeUnit();
    });
  }

  // The first 128-block's weights.
  __device__ void Begin(BlockWeights& first) {
    DecodeSteps<kB2, 0, 8>(reader_, stream_.NextWeights(inputs_, 0), first);
    stream_.FreeWeights();
  }
  __device__ void End() { FoldSegment<Tile>(contract::kSegments - 1, folds_, y); }

  float y[Tile::kGroups][Tile::kResults];

 private:
  // The segments that end where block b begins.
  __device__ void FoldSegmentsBefore(int b) {
    while (segment_end_ <= b) {
      FoldSegment<Tile>(segment_, folds_, y);
      ++segment_;
      segment_end_ = contract::FirstBlock(inputs_.blocks, segment_ + 1);
    }
  }

  const TallInputs<kB2, Tile>& inputs_;
  TallStream<kB2, Tile>& stream_;
  std::byte* folds_;
  RunReader<kB2> reader_;
  int segment_ = 0, segment_end_;
  float block_[2][Tile::kSums];
};

// Block (128 outputs, tile, part).
template <int kB2, class Tile>
__device__ void TallProduct(const Exl3Call& call, const Exl3Job& job, const RowTile& tile, std::int64_t index, int part) {
  const std::int64_t slot = call.tiles.LargeSlotOf(index, part), column = blockIdx.x * std::int64_t{kExl3Columns};
  extern __shared__ __align__(1024) std::byte tall_shared[];
  const TallInputs<kB2, Tile> inputs(call, job, slot, column);
  TallStream<kB2, Tile> stream(tall_shared);
  if (TakesInputs(call.relay) && threadIdx.x == kMultiplyThreads) AwaitCount(call.relay.inputs + index, PreparedBlocks(tile.rows));
  __syncthreads();
  if (threadIdx.x >= kMultiplyThreads) {
    GiveRegisters<40>();  // of 168 that all start with
    stream.Copy(inputs);
  } else {
    TakeRegisters<232>();
    TallSums<kB2, Tile> sums(inputs, stream, tall_shared + TallMemory<kB2, Tile>::kFoldsAt);
    BlockWeights a[2];
    sums.Begin(a[0]);
    for (int b = 0; b < inputs.blocks; b += 2) {
      sums.Step(b, a[0], a[1]);
      if (b + 1 < inputs.blocks) sums.Step(b + 1, a[1], a[0]);
    }
    sums.End();

    const TileEpilogue<true> epilogue(call, job, part, column);
    SyncMultiplyWarps();  // rings and folds are read
    auto* result = reinterpret_cast<float*>(tall_shared);
    auto* corrections = result + Tile::kRows * ResultTile::kRow;
    if (threadIdx.x < Tile::kRows) corrections[threadIdx.x] = call.z[slot + threadIdx.x];
    StoreResult<Tile>(sums.y, result);
    SyncMultiplyWarps();
    epilogue.Run(tile, result, corrections, static_cast<int>(threadIdx.x) / 32, kMultiplyThreads / 32);
    if (MakesInputs(call.relay)) {
      SyncMultiplyWarps();
      if (threadIdx.x == 0) CountUp(call.relay.outputs + index);
    }
  }
}

template <int kB2, class Tile>
__global__ void __launch_bounds__(kTallThreads, 1) Exl3TallKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  BeginLarge(call.waits);
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z);
  RowTile tile;
  Exl3Job job;
  const bool found = call.tiles.Find(index, part, &tile, &job) && blockIdx.x * kExl3Columns < job.out;
  if (found && job.bits_x2 == kB2) TallProduct<kB2, Tile>(call, job, tile, index, part);
  EndLarge(call.waits);
}

template <class Tile>
void LaunchTallOfRate(const Exl3Call& call, int bits_x2, CudaStream& stream) {
  LaunchOfRate(bits_x2, [&](auto rate) {
    constexpr int kB2 = decltype(rate)::value;
    LaunchOverTiles(Exl3TallKernel<kB2, Tile>, Tile::kRows, kTallThreads, TallMemory<kB2, Tile>::kBytes, call, stream);
  });
}

}  // namespace lockstep::kernels
