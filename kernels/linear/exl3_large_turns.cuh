// Tiles of 128 rows: a block a multiprocessor, which takes one tile after the other. Two warpgroups multiply; where a tile's inputs end, those of the next one
// follow in their ring. A third finishes the tile before (correction, butterfly, outputs) and finds the next one, all while the others multiply.
#pragma once

#include <algorithm>

#include "kernels/linear/exl3_large_launch.cuh"
#include "kernels/linear/exl3_large_sums.cuh"
#include "kernels/linear/exl3_relay.cuh"

namespace lockstep::kernels {

inline constexpr int kFullTileRows = 128;
inline constexpr int kFinishThreads = 128, kTurnThreads = kLargeThreads + kFinishThreads;

// The tiles of a launch.
struct TileTurns {
  std::int64_t first = 0;
  std::int32_t count = 0;
  std::int32_t* taken = nullptr;  // zero before the launch
};

// 128 outputs of a tile.
struct LargePlace {
  Exl3Job job;
  RowTile tile;
  std::int64_t index;
  std::int32_t part, column;
  bool there;  // false: the tiles have ended
};

template <int kB2, WeightForm kWeight>
__device__ bool IsOfRate(const Exl3Job& job) {
  return job.bits_x2 == kB2 && (kWeight == WeightForm::kMul1Integer || job.codebook == CodebookOf(kWeight));
}

// What the parts of a block tell each other: barriers beside that of the warps that multiply, with all threads that take part.
struct TurnBarriers {
  static constexpr int kResult = 2, kFree = 3, kWanted = 4, kFound = 5, kFinish = 6;
  static constexpr int kFinder = kLargeThreads + 32;  // those that multiply, and the warp that finds places
};

// Shared memory: ring and folds of LargeShared, whose folds hold the result too, from the end of a tile to the first fold of the next; then two places.
template <int kB2>
struct TurnShared {
  using Large = LargeShared<kB2, kFullTileRows>;
  static constexpr std::size_t kPlaces = Large::kRing + Large::kFolds + 64, kBytes = kPlaces + 2 * sizeof(LargePlace);
  static_assert(Large::kResult <= Large::kFolds && kBytes <= kMaxShared);
};

// The place of `unit`, or of the next one that is this launch's, whose inputs are there; by one thread. Units lie in order of part, tile, outputs.
template <int kB2, WeightForm kWeight>
__device__ void FindPlace(const Exl3Call& call, const TileTurns& turns, std::uint32_t unit, LargePlace* place) {
  const std::uint32_t outputs = call.out / kExl3Columns, tiles = turns.count, units = outputs * tiles * call.tiles.parts;
  place->there = false;
  for (; unit < units; unit = gridDim.x + atomicAdd(turns.taken, 1)) {
    RowTile tile;
    Exl3Job job;
    const std::uint32_t row = unit / outputs;
    const std::int32_t column = static_cast<std::int32_t>(unit % outputs) * kExl3Columns, part = static_cast<std::int32_t>(row / tiles);
    const std::int64_t index = turns.first + row % tiles;
    if (!call.tiles.Find(index, part, &tile, &job) || column >= job.out || !IsOfRate<kB2, kWeight>(job)) continue;
    if (TakesInputs(call.relay)) AwaitCount(call.relay.inputs + index, PreparedBlocks(tile.rows));
    *place = {job, tile, index, part, column, true};
    return;
  }
}

// The inputs of one tile after the other. At a tile's end its sums are the finishing warps'.
template <int kB2, bool kInteger>
class TurnStream {
 public:
  __device__ TurnStream(const Exl3Call& call, const LargePlace* places, std::byte* barriers) : call_(call), places_(places), stream_(barriers) {
    wanted_at_ = max(0, call.in / kHalf - kAhead);
  }

  // The first tile. After the block's barrier.
  __device__ void Begin() { Set(places_[0]); }
  // The results of a tile are stored. False: it was the last.
  __device__ bool Next() {
    ArriveSome<TurnBarriers::kResult, kTurnThreads>();
    owed_ = true;
    return !ended_;
  }

  __device__ void Copy(std::byte* stage, bool odd) {
    if (stream_.ended() && !ended_) Cross();
    stream_.Copy(stage, odd);
  }
  __device__ void WaitForCodes() { stream_.WaitForCodes(); }
  __device__ void BeforeBlock(int half) {
    if (half == wanted_at_) ArriveSome<TurnBarriers::kWanted, TurnBarriers::kFinder>();
  }
  // Results of the tile before may lie where the folds are.
  __device__ void BeforeFold() {
    if (owed_) SyncSome<TurnBarriers::kFree, kTurnThreads>();
    owed_ = false;
  }

 private:
  static constexpr int kAhead = 8;  // halves of a tile before its end: time to find the next one

  __device__ void Set(const LargePlace& place) { stream_.Set(call_, place.job, call_.tiles.LargeSlotOf(place.index, place.part), place.column); }
  __device__ void Cross() {
    SyncSome<TurnBarriers::kFound, TurnBarriers::kFinder>();
    next_ ^= 1;
    ended_ = !places_[next_].there;
    if (ended_) return;
    if (TakesInputs(call_.relay)) ShowToCopies();
    Set(places_[next_]);
  }

  const Exl3Call& call_;
  const LargePlace* places_;
  LargeStream<kB2, kFullTileRows, kInteger> stream_;
  int wanted_at_, next_ = 0;
  bool owed_ = false, ended_ = false;
};

// The third warpgroup.
template <int kB2, WeightForm kWeight>
__device__ void FinishTiles(const Exl3Call& call, const TileTurns& turns, LargePlace* places, const float* result) {
  const int thread = static_cast<int>(threadIdx.x) - kLargeThreads, warp = thread / 32;
  for (int turn = 0; places[turn].there; turn ^= 1) {
    const LargePlace& place = places[turn];
    const TileEpilogue<kWeight == WeightForm::kMul1Integer> epilogue(call, place.job, place.part, place.column);
    const RowTile tile = place.tile;
    const std::int64_t index = place.index;
    const float* z = call.z + call.tiles.LargeSlotOf(index, place.part);
    if (warp == 0) {
      SyncSome<TurnBarriers::kWanted, TurnBarriers::kFinder>();
      if (thread == 0) FindPlace<kB2, kWeight>(call, turns, gridDim.x + atomicAdd(turns.taken, 1), &places[turn ^ 1]);
      __syncwarp();
      ArriveSome<TurnBarriers::kFound, TurnBarriers::kFinder>();
    }
    SyncSome<TurnBarriers::kResult, kTurnThreads>();
    epilogue.Run(tile, result, z, warp, kFinishThreads / 32);
    SyncSome<TurnBarriers::kFinish, kFinishThreads>();
    if (places[turn ^ 1].there) ArriveSome<TurnBarriers::kFree, kTurnThreads>();
    if (MakesInputs(call.relay) && thread == 0) CountUp(call.relay.outputs + index);
  }
}

template <int kB2, WeightForm kWeight>
__global__ void __launch_bounds__(kTurnThreads, 1) Exl3TurnsKernel(const __grid_constant__ Exl3Call call, const __grid_constant__ TileTurns turns) {
  using Sums = LargeSums<kB2, kFullTileRows, kWeight>;
  using Shared = TurnShared<kB2>;
  extern __shared__ __align__(1024) std::byte large_shared[];
  auto* places = reinterpret_cast<LargePlace*>(large_shared + Shared::kPlaces);
  auto* result = reinterpret_cast<float*>(large_shared + Shared::Large::kRing);
  BeginLarge(call.waits);
  TurnStream<kB2, Sums::kInteger> stream(call, places, large_shared + Shared::Large::kRing + Shared::Large::kFolds);
  if (threadIdx.x == 0) FindPlace<kB2, kWeight>(call, turns, blockIdx.x, places);
  __syncthreads();
  if (threadIdx.x >= kLargeThreads) {
    GiveRegisters<72>();  // of 168 that all start with
    FinishTiles<kB2, kWeight>(call, turns, places, result);
  } else {
    TakeRegisters<216>();
    if (places[0].there) {
      Sums sums(large_shared);
      stream.Begin();
      sums.Begin(stream);
      do {
        sums.Multiply(stream, call.in);
        Sums::Sync();  // the folds are read
        StoreResult(sums.results(), result);
        sums.Clear();
      } while (stream.Next());
    }
  }
  EndLarge(call.waits);
}

// All tiles of 128 rows of the call. Each launch needs a counter of its own.
template <int kB2, WeightForm kWeight>
void LaunchInTurns(const Exl3Call& call, CudaStream& stream) {
  const auto kernel = Exl3TurnsKernel<kB2, kWeight>;
  const TileTurns turns = {0, static_cast<std::int32_t>(call.tiles.count_128), call.taken};
  const std::int64_t units = call.tiles.count_128 * call.tiles.parts * (call.out / kExl3Columns);
  AllowShared(kernel, stream.device());
  Launch(kernel, dim3(static_cast<unsigned>(std::min<std::int64_t>(units, stream.processors()))), kTurnThreads, TurnShared<kB2>::kBytes, stream, call, turns);
  CheckLaunch("exl3 product of many rows");
}

}  // namespace lockstep::kernels
