// EXL3 products of many rows: prefill. A block takes 128 outputs and one tile of kSlots code rows and decodes every weight once for them, straight
// into registers as the A operand of the tensor cores; the rows' codes are B, streamed through a ring in shared memory that all warps share.
// While the tensor cores work on one half of a 128-block, the warps decode the next. Segments follow each other and fold in shared memory.
#pragma once

#include <algorithm>

#include "kernels/contract/segments.h"
#include "kernels/linear/async_copy.cuh"
#include "kernels/linear/exl3_large_epilogue.cuh"
#include "kernels/linear/exl3_large_launch.cuh"
#include "kernels/linear/stage_copies.cuh"
#include "kernels/linear/tile_product.cuh"
#include "kernels/linear/trellis_cuda.cuh"

namespace lockstep::kernels {

inline constexpr int kLargeThreads = 256;  // a warp a strip of 16 columns
inline constexpr int kHalf = 64;           // inputs of a stage
inline constexpr std::size_t kMaxShared = 227 * 1024;

// A stage: codes [kSlots][64] fp16, the packed weights of eight strips, the scales of the 128-block.
template <int kB2, int kSlots>
struct LargeStage {
  static constexpr int kCodes = kSlots * kHalf * 2, kStrip = kHalf * kB2, kWeights = 8 * kStrip, kScales = kSlots * 4;
  static constexpr int kBytes = (kCodes + kWeights + kScales + 1023) / 1024 * 1024;  // codes on multiples of 1024
};

// Shared memory: the ring, then two folds of segments; the result of the epilogue and the corrections of its rows take their place.
template <int kB2, int kSlots>
struct LargeShared {
  static constexpr std::size_t kFolds = 2 * std::size_t{kSlots} / 2 * kLargeThreads * sizeof(float), kResult = std::size_t{kSlots} * (ResultTile::kRow + 1) * sizeof(float);
  // Tiles of 64 rows leave room for a second block on the multiprocessor.
  static constexpr int kStages = kSlots > 64 && 4 * LargeStage<kB2, kSlots>::kBytes + kFolds + 64 <= kMaxShared ? 4 : 3;
  static constexpr std::size_t kRing = std::size_t{kStages} * LargeStage<kB2, kSlots>::kBytes;
  static constexpr std::size_t kBarriers = std::max(kRing + kFolds, kResult);
  static constexpr std::size_t kBytes = kBarriers + 64;
  static_assert(kBytes <= kMaxShared);
};

// A block's way through its inputs, 64 a step: the tile's codes, the eight strips' weights, the scales. Weights and scales are copied in the
// thread's groups of asynchronous copies.
template <int kB2, int kSlots, bool kInteger>
class LargeStream {
 public:
  using Stage = LargeStage<kB2, kSlots>;

  static constexpr int kStages = LargeShared<kB2, kSlots>::kStages;

  // `barriers`: shared memory of StageCopies.
  __device__ LargeStream(const Exl3Call& call, const Exl3Job& job, std::int64_t slot, std::int64_t column, std::byte* barriers) : copies_(barriers) {
    const int thread = static_cast<int>(threadIdx.x);
    codes_ = call.codes + slot * (kHalf * 2);
    codes_step_ = call.tiles.slots() * (kHalf * 2);
    const std::int64_t strip_bytes = call.in * kB2;  // 16 columns
    const auto* strips = reinterpret_cast<const std::byte*>(job.tiles) + column / 16 * strip_bytes;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = thread + i * kLargeThreads;
      weights_[i] = strips + piece / kStripPieces * strip_bytes + piece % kStripPieces * 16;
    }
    scales_ = reinterpret_cast<const std::byte*>(call.scales + slot) + thread * 16;
    scales_step_ = call.tiles.slots() * static_cast<std::int64_t>(sizeof(float));
    has_scales_ = kInteger && thread < kSlots / 4;
  }

  // The next 64 inputs; `odd`: the second half of a 128-block, with which its scales travel.
  __device__ void Copy(std::byte* stage, bool odd) {
    copies_.Start(stage, codes_);
    std::byte* to = stage + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if ((i + 1) * kLargeThreads <= 8 * kStripPieces || static_cast<int>(threadIdx.x) + i * kLargeThreads < 8 * kStripPieces) {
        CopyAsync16(to + Stage::kCodes + i * kLargeThreads * 16, weights_[i]);
      }
      weights_[i] += Stage::kStrip;
    }
    codes_ += codes_step_;
    if (!odd) return;
    if (has_scales_) CopyAsync16(to + Stage::kCodes + Stage::kWeights, scales_);
    scales_ += scales_step_;
  }

  // Until the codes of the next stage in turn are there.
  __device__ void WaitForCodes() { copies_.Wait(); }

 private:
  static constexpr int kStripPieces = Stage::kStrip / 16, kPieces = (8 * kStripPieces + kLargeThreads - 1) / kLargeThreads;  // of 16 bytes

  StageCopies<kStages, Stage::kCodes, kLargeThreads> copies_;
  const std::byte *codes_, *weights_[kPieces], *scales_;
  std::int64_t codes_step_, scales_step_;
  bool has_scales_;
};

// The A fragments of a warp's strip for the four k16 steps of a stage.
template <int kB2, WeightForm kWeight>
__device__ void DecodeStage(const RunReader<kB2>& reader, const std::byte* weights, std::uint32_t (&a)[4][4]) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(weights + threadIdx.x / 32 * kHalf * kB2);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    std::uint32_t state[8];
    reader.States(words + step * 4 * kB2, state);
    a[step][0] = DecodePair<kWeight>(state[0], state[1]);
    a[step][1] = DecodePair<kWeight>(state[4], state[5]);
    a[step][2] = DecodePair<kWeight>(state[2], state[3]);
    a[step][3] = DecodePair<kWeight>(state[6], state[7]);
  }
}

// The sums of a thread: outputs g (i < 2) and g + 8 of its warp's strip, code rows 8j + 2q + i%2, in [4j + i].
// Family I: y += block sums times the rows' scales, and the block sums start anew.
template <int kSlots>
__device__ void AddBlock(const float* scales, const float (&sum)[kSlots / 2], float (&y)[kSlots / 2]) {
  const int q = threadIdx.x & 3;
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
    const float2 scale = *reinterpret_cast<const float2*>(scales + 8 * j + 2 * q);
#pragma unroll
    for (int i = 0; i < 4; ++i) y[4 * j + i] = contract::Fma(sum[4 * j + i], i & 1 ? scale.y : scale.x, y[4 * j + i]);
  }
}

// Folded sums in shared memory, four of a thread together: [kResults/4][kLargeThreads].
template <int kResults>
class Fold {
 public:
  __device__ explicit Fold(std::byte* memory) : at_(reinterpret_cast<float4*>(memory) + threadIdx.x) {}

  __device__ void Store(const float (&y)[kResults]) {
#pragma unroll
    for (int i = 0; i < kResults / 4; ++i) at_[i * kLargeThreads] = make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
  }
  // y = what was stored + y.
  __device__ void AddTo(float (&y)[kResults]) const {
#pragma unroll
    for (int i = 0; i < kResults / 4; ++i) {
      const float4 stored = at_[i * kLargeThreads];
      y[4 * i] = contract::Add(stored.x, y[4 * i]), y[4 * i + 1] = contract::Add(stored.y, y[4 * i + 1]);
      y[4 * i + 2] = contract::Add(stored.z, y[4 * i + 2]), y[4 * i + 3] = contract::Add(stored.w, y[4 * i + 3]);
    }
  }

 private:
  float4* at_;
};

// After a segment, with two folds in `folds`: see FoldSegmentInto.
template <int kResults>
__device__ void FoldSegment(int segment, std::byte* folds, float (&y)[kResults]) {
  if (!FoldSegmentInto(segment, Fold<kResults>(folds), Fold<kResults>(folds + kResults * kLargeThreads * 4), y)) return;
#pragma unroll
  for (float& value : y) value = 0.0f;
}

// A thread's folded sums to the tile's result.
template <int kResults>
__device__ void StoreResult(const float (&y)[kResults], float* result) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
#pragma unroll
  for (int i = 0; i < kResults; ++i) result[ResultTile::At(i / 4 * 8 + 2 * q + i % 2, 16 * warp + g + i % 4 / 2 * 8)] = y[i];
}

// Block (128 outputs, tile, part).
template <int kB2, int kSlots, WeightForm kWeight>
__device__ void LargeProduct(const Exl3Call& call, const Exl3Job& job, const RowTile& tile, int part, std::int64_t slot, std::int64_t column) {
  constexpr bool kInteger = kWeight == WeightForm::kMul1Integer;
  constexpr int kSums = kSlots / 2, kStages = LargeShared<kB2, kSlots>::kStages;
  using Stage = LargeStage<kB2, kSlots>;
  extern __shared__ __align__(1024) std::byte large_shared[];
  std::byte* const ring_end = large_shared + kStages * Stage::kBytes;
  LargeStream<kB2, kSlots, kInteger> stream(call, job, slot, column, large_shared + LargeShared<kB2, kSlots>::kBarriers);
  __syncthreads();
  int to_copy = static_cast<int>(call.in / kHalf);  // halves
  const auto copy = [&](std::byte* stage, bool odd) {
    if (to_copy > 0) stream.Copy(stage, odd);
    --to_copy;
    CopyCommit();
  };
  const auto after = [&](std::byte* stage) { return stage + Stage::kBytes == ring_end ? large_shared : stage + Stage::kBytes; };
#pragma unroll
  for (int half = 0; half < kStages - 1; ++half) copy(large_shared + half * Stage::kBytes, half % 2 == 1);
  CopyWait<kStages - 2>();
  __syncthreads();

  const RunReader<kB2> reader;
  float sum[kSums], y[kInteger ? kSums : 1];
#pragma unroll
  for (float& value : sum) value = 0.0f;
#pragma unroll
  for (float& value : y) value = 0.0f;
  std::uint32_t a[2][4][4];
  DecodeStage<kB2, kWeight>(reader, large_shared + Stage::kCodes, a[0]);
  std::byte *stage = large_shared, *free_stage = ring_end - Stage::kBytes;
  // Starts the products of one half with `now`; while they run, decodes the next half into `other`, which the half before used. There is a next
  // one even past the end: its bytes are old, its fragments are not used.
  const auto step = [&](bool odd, std::uint32_t (&now)[4][4], std::uint32_t (&other)[4][4]) {
    stream.WaitForCodes();
    TileProduct<kSlots>::Start(sum, now, stage, /*accumulate=*/!kInteger || odd);
    TileProduct<kSlots>::WaitForPrevious(other);
    // The copies of the next stage are kStages - 3 groups back; the stage before this one is free once every warp is here.
    CopyWait<kStages - 3>();
    __syncthreads();
    copy(free_stage, kStages % 2 == 0 ? !odd : odd);
    DecodeStage<kB2, kWeight>(reader, after(stage) + Stage::kCodes, other);
    free_stage = stage;
    stage = after(stage);
  };
  int half = 0;
  for (int s = 0; s < contract::kSegments; ++s) {
    const int end = static_cast<int>(contract::SegmentOf(call.in, s).end) / kHalf;
    for (; half < end; half += 2) {
      step(false, a[0], a[1]);
      step(true, a[1], a[0]);
      if constexpr (kInteger) {
        TileProduct<kSlots>::Wait(sum, a[1]);
        AddBlock<kSlots>(reinterpret_cast<const float*>(free_stage + Stage::kCodes + Stage::kWeights), sum, y);
      }
    }
    if constexpr (kInteger) {
      FoldSegment(s, ring_end, y);
    } else {
      TileProduct<kSlots>::Wait(sum, a[1]);
      FoldSegment(s, ring_end, sum);
    }
  }

  const TileEpilogue<kInteger> epilogue(call, job, part, column);
  __syncthreads();  // ring and folds are read
  auto* result = reinterpret_cast<float*>(large_shared);
  auto* corrections = result + kSlots * ResultTile::kRow;
  if (kInteger && threadIdx.x < kSlots) corrections[threadIdx.x] = call.z[slot + threadIdx.x];
  if constexpr (kInteger) StoreResult(y, result);
  else StoreResult(sum, result);
  __syncthreads();
  epilogue.Run(tile, result, corrections, kLargeThreads / 32);
}

template <int kB2, int kSlots, WeightForm kWeight>
__global__ void __launch_bounds__(kLargeThreads, kSlots == 64 ? 2 : 1) Exl3LargeKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z);
  RowTile tile;
  Exl3Job job;
  if (!call.tiles.Find(index, part, &tile, &job) || blockIdx.x * kExl3Columns >= job.out) return;
  if (job.bits_x2 != kB2 || (kWeight != WeightForm::kMul1Integer && job.codebook != CodebookOf(kWeight))) return;
  LargeProduct<kB2, kSlots, kWeight>(call, job, tile, part, call.tiles.SlotOf(index, part), blockIdx.x * std::int64_t{kExl3Columns});
}

template <int kSlots, WeightForm kWeight>
void LaunchLargeOfRate(const Exl3Call& call, int bits_x2, CudaStream& stream) {
  LaunchOfRate(bits_x2, [&](auto rate) {
    constexpr int kB2 = decltype(rate)::value;
    LaunchOverTiles(Exl3LargeKernel<kB2, kSlots, kWeight>, kLargeThreads, LargeShared<kB2, kSlots>::kBytes, call, stream);
  });
}

// Tiles of 64 or 128 rows.
template <WeightForm kWeight>
void LaunchLargeOfRows(const Exl3Call& call, int bits_x2, CudaStream& stream) {
  if (call.tiles.tile_rows == 64) return LaunchLargeOfRate<64, kWeight>(call, bits_x2, stream);
  LaunchLargeOfRate<128, kWeight>(call, bits_x2, stream);
}

}  // namespace lockstep::kernels
