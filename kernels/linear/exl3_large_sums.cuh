// What blocks of large EXL3 tiles are made of (exl3_large.cuh, exl3_large_turns.cuh): the ring of inputs in shared memory, and the sums of a tile. Weights are
// decoded straight into registers as the A operand of the tensor cores; the rows' codes are B, streamed through the ring, which all warps share.
// While the tensor cores work on one half of a 128-block, the warps decode the next. Segments follow each other and fold in shared memory.
#pragma once

#include <algorithm>

#include "kernels/contract/segments.h"
#include "kernels/device/warpgroups.cuh"
#include "kernels/linear/async_copy.cuh"
#include "kernels/linear/exl3_large_epilogue.cuh"
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
  static constexpr std::size_t kFolds = 2 * std::size_t{kSlots} / 2 * kLargeThreads * sizeof(float), kResult = std::size_t{kSlots} * ResultTile::kRow * sizeof(float);
  // Tiles of 64 rows leave room for a second block on the multiprocessor.
  static constexpr int kStages = kSlots > 64 && 4 * LargeStage<kB2, kSlots>::kBytes + kFolds + 64 <= kMaxShared ? 4 : 3;
  static constexpr std::size_t kRing = std::size_t{kStages} * LargeStage<kB2, kSlots>::kBytes;
  static constexpr std::size_t kBarriers = std::max(kRing + kFolds, kResult);
  static constexpr std::size_t kBytes = kBarriers + 64;
  static_assert(kBytes <= kMaxShared);
};

// A tile's inputs, 64 a step: its rows' codes, the eight strips' weights, the scales. Weights and scales are copied in the thread's groups of
// asynchronous copies.
template <int kB2, int kSlots, bool kInteger>
class LargeStream {
 public:
  using Stage = LargeStage<kB2, kSlots>;

  static constexpr int kStages = LargeShared<kB2, kSlots>::kStages;

  // `barriers`: shared memory of StageCopies. A block barrier must follow.
  __device__ explicit LargeStream(std::byte* barriers) : copies_(barriers) {}

  // A tile's inputs come next. `column`: the first of its 128 outputs.
  __device__ void Set(const Exl3Call& call, const Exl3Job& job, std::int64_t slot, std::int64_t column) {
    const int thread = static_cast<int>(threadIdx.x);
    codes_ = call.codes + slot * (kHalf * 2);
    codes_step_ = call.tiles.large_slots() * (kHalf * 2);
    const std::int64_t strip_bytes = call.in * kB2;  // 16 columns
    const auto* strips = reinterpret_cast<const std::byte*>(job.tiles) + column / 16 * strip_bytes;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = thread + i * kLargeThreads;
      weights_[i] = strips + piece / kStripPieces * strip_bytes + piece % kStripPieces * 16;
    }
    scales_ = reinterpret_cast<const std::byte*>(call.scales + slot) + thread * 16;
    scales_step_ = call.tiles.large_slots() * static_cast<std::int64_t>(sizeof(float));
    has_scales_ = kInteger && thread < kSlots / 4;
    left_ = call.in / kHalf;
  }

  // Whether all of the tile's inputs are on their way.
  __device__ bool ended() const { return left_ == 0; }

  // The next 64 inputs, if there are any; `odd`: the second half of a 128-block, with which its scales travel.
  __device__ void Copy(std::byte* stage, bool odd) {
    if (left_ == 0) return;
    --left_;
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

  // What else happens before a 128-block's products, and before sums go to the folds.
  __device__ void BeforeBlock(int) {}
  __device__ void BeforeFold() {}

 private:
  static constexpr int kStripPieces = Stage::kStrip / 16, kPieces = (8 * kStripPieces + kLargeThreads - 1) / kLargeThreads;  // of 16 bytes

  StageCopies<kStages, Stage::kCodes, kLargeThreads> copies_;
  const std::byte *codes_, *weights_[kPieces], *scales_;
  std::int64_t codes_step_, scales_step_;
  int left_ = 0;
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

// The sums of a tile's 128 outputs, by kLargeThreads threads. Inputs come from a stream as LargeStream is; where one tile's end, those of the next may follow.
template <int kB2, int kSlots, WeightForm kWeight>
class LargeSums {
 public:
  static constexpr bool kInteger = kWeight == WeightForm::kMul1Integer;
  static constexpr int kResults = kSlots / 2, kStages = LargeShared<kB2, kSlots>::kStages;
  using Stage = LargeStage<kB2, kSlots>;

  // `shared`: the ring, and the folds behind it.
  __device__ explicit LargeSums(std::byte* shared) : ring_(shared), stage_(shared), free_(shared + (kStages - 1) * Stage::kBytes) { Clear(); }

  // Waits for the first inputs.
  template <class Stream>
  __device__ void Begin(Stream& stream) {
#pragma unroll
    for (int half = 0; half < kStages - 1; ++half) stream.Copy(ring_ + half * Stage::kBytes, half % 2 == 1), CopyCommit();
    CopyWait<kStages - 2>();
    Sync();
    DecodeStage<kB2, kWeight>(reader_, ring_ + Stage::kCodes, a_[0]);
  }

  // A tile, of `in` inputs.
  template <class Stream>
  __device__ void Multiply(Stream& stream, std::int32_t in) {
    int half = 0;
    for (int s = 0; s < contract::kSegments; ++s) {
      const int end = static_cast<int>(contract::SegmentOf(in, s).end) / kHalf;
      for (; half < end; half += 2) {
        stream.BeforeBlock(half);
        Step(stream, false, a_[0], a_[1]);
        Step(stream, true, a_[1], a_[0]);
        if constexpr (kInteger) {
          TileProduct<kSlots>::Wait(sum_, a_[1]);
          AddBlock<kSlots>(reinterpret_cast<const float*>(free_ + Stage::kCodes + Stage::kWeights), sum_, y_);
        }
      }
      if constexpr (!kInteger) TileProduct<kSlots>::Wait(sum_, a_[1]);
      stream.BeforeFold();
      FoldSegment(s, ring_ + kStages * Stage::kBytes, results());
    }
  }

  // Folded, after Multiply.
  __device__ float (&results())[kResults] {
    if constexpr (kInteger) return y_;
    else return sum_;
  }

  __device__ void Clear() {
#pragma unroll
    for (float& value : sum_) value = 0.0f;
#pragma unroll
    for (float& value : y_) value = 0.0f;
  }

  static __device__ void Sync() { SyncSome<1, kLargeThreads>(); }

 private:
  // Starts the products of one half with `now`; while they run, decodes the next half into `other`, which the half before used. There is a next
  // one even past the end: its bytes are old, its fragments are not used.
  template <class Stream>
  __device__ void Step(Stream& stream, bool odd, std::uint32_t (&now)[4][4], std::uint32_t (&other)[4][4]) {
    stream.WaitForCodes();
    TileProduct<kSlots>::Start(sum_, now, stage_, /*accumulate=*/!kInteger || odd);
    TileProduct<kSlots>::WaitForPrevious(other);
    // The copies of the next stage are kStages - 3 groups back; the stage before this one is free once every warp is here.
    CopyWait<kStages - 3>();
    Sync();
    stream.Copy(free_, kStages % 2 == 0 ? !odd : odd);
    CopyCommit();
    free_ = stage_;
    stage_ = stage_ + Stage::kBytes == ring_ + kStages * Stage::kBytes ? ring_ : stage_ + Stage::kBytes;
    DecodeStage<kB2, kWeight>(reader_, stage_ + Stage::kCodes, other);
  }

  std::byte *ring_, *stage_, *free_;  // the present stage and the one before it
  RunReader<kB2> reader_;
  std::uint32_t a_[2][4][4];
  float sum_[kResults], y_[kInteger ? kResults : 1];
};

}  // namespace lockstep::kernels
