// The end of a small EXL3 product: what segments hand on, and what the block of the last one makes of it: outputs, or the codes of an expert's down.
#pragma once

#include "kernels/contract/segments.h"
#include "kernels/device/lane_words.cuh"
#include "kernels/linear/async_copy.cuh"
#include "kernels/linear/exl3_codes.cuh"

namespace lockstep::kernels {

// Where a block works, in shared memory: one thread finds it, and registers are the product's.
struct SmallPlace {
  RowTile tile;
  Exl3Job job;
  int index, part;  // of the tile, of the call
  int output, segment;     // 128 outputs of the call's, or of down's
  int first_block, blocks; // of the segment
  int in_blocks;  // of a row
  int column;  // first output of the block
  const std::byte* weights;  // its first 128-block of the first strip; a strip's are in_blocks apart
  std::uint32_t* partial;  // of these outputs: what segments hand on
  bool down;   // it belongs to what follows
  bool early;  // its rows were there before the kernel before began
};

// The lane's four columns of a row in a segment, and the segment's part of the row's correction (family I).
struct SegmentSums {
  float v[4], z;

  __device__ void Set(const float4& x) { v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w; }
  __device__ void Add(const float4& x, float scale) {
    v[0] = contract::Fma(x.x, scale, v[0]), v[1] = contract::Fma(x.y, scale, v[1]), v[2] = contract::Fma(x.z, scale, v[2]), v[3] = contract::Fma(x.w, scale, v[3]);
  }
};

// Of all segments of a row; z the same in all lanes.
struct RowSums {
  float v[contract::kSegments][4], z[contract::kSegments];

  __device__ void Set(int segment, const SegmentSums& own) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[segment][i] = own.v[i];
    z[segment] = own.z;
  }
  // Family I: corrected.
  template <bool kInteger>
  __device__ void Fold(float (&y)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = contract::FoldSegments(v[0][i], v[1][i], v[2][i], v[3][i]);
    if (kInteger) CorrectSums(contract::FoldSegments(z[0], z[1], z[2], z[3]), y);
  }
};

// Of the at-th of all outputs of all tiles of gate and up, or of a call without down.
__device__ inline std::uint32_t* PartialOf(const Exl3Call& call, int at) { return call.partial + static_cast<std::int64_t>(at) * SmallPartialWords(call.tiles.tile_rows); }

// Where a row's segments of 128 outputs of a tile leave sums [4][128] and corrections [4] for the block that finishes them.
template <bool kInteger>
struct SmallPartial {
  std::uint32_t *sums, *z;

  __device__ SmallPartial(std::uint32_t* partial, int tile_rows, int row)
      : sums(partial + row * contract::kSegments * kExl3Columns + 4 * (threadIdx.x & 31)), z(partial + (tile_rows * kExl3Columns + row) * contract::kSegments) {}

  __device__ void Send(int segment, const SegmentSums& own) const {
    SendHalfWords(sums + segment * kExl3Columns, own.v);
    if (kInteger && (threadIdx.x & 31) == 0) SendHalfWord(z + segment, own.z);
  }
  // Whether the first kCount segments are there.
  template <int kCount>
  __device__ bool Receive(RowSums& s) const {
    bool there = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) there = ReceiveHalfWords(sums + i * kExl3Columns, s.v[i]) && there;
    if constexpr (kInteger) {
      float received[kCount];
      there = ReceiveHalfWords(z, received) && there;
#pragma unroll
      for (int i = 0; i < kCount; ++i) s.z[i] = received[i];
    }
    return there;
  }
  // The last one is not sent, or it is read like the others.
  __device__ void Clear() const {
#pragma unroll
    for (int i = 0; i < contract::kSegments; ++i) ClearHalfWords(sums + i * kExl3Columns);
    if (kInteger && (threadIdx.x & 31) == 0) ClearHalfWords(z);
  }
};

// Counts one more 128-block of down's inputs; what the block wrote is then visible to who waits for it.
__device__ inline void AnnounceInputs(const Exl3Call& call, int tile, int block) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::int32_t* ready = call.down.ready + tile * contract::kSegments;
  for (int s = 1; s < contract::kSegments; ++s) ready += block >= contract::FirstBlock(call.down.in / 128, s);
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(ready) : "memory");
}

// Waits for the inputs of a block of down. Those who leave them have earlier blocks, so they have started and end without it. Who waits counts later
// (CountWaiter), so that the last one of all outputs leaves zero.
__device__ inline void WaitForInputs(const Exl3Call& call, const SmallPlace& place) {
  if (threadIdx.x == 0) {
    const std::int32_t* ready = call.down.ready + place.index * contract::kSegments + place.segment;
    std::int32_t there;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(ready) : "memory");
    } while (there < place.blocks);
  }
  __syncthreads();
}

// Behind the wait, where nothing waits for it.
__device__ inline void CountWaiter(const Exl3Call& call, const SmallPlace& place) {
  if (threadIdx.x != 0) return;
  std::int32_t* ready = call.down.ready + place.index * contract::kSegments + place.segment;
  if (atomicAdd(ready, 1) + 1 == place.blocks + place.job.out / kExl3Columns) *ready = 0;
}

// What the block that finishes gate and up needs of the other matrices, in shared memory.
struct SmallPair {
  Exl3Job gate, down;
  std::uint32_t* gate_partial;  // of the same outputs
};

// Whether the block finishes its outputs, because it is the last to start of all that have segments of them.
template <bool kExperts>
__device__ inline bool Finishes(const SmallPlace& place) {
  return place.segment == contract::kSegments - 1 && (!kExperts || place.down || place.part == 1);
}

// By one thread, before anything waits for it.
__device__ inline void FindPair(const Exl3Call& call, const SmallPlace& place, SmallPair& pair) {
  RowTile rows;
  call.tiles.Find(place.index, 0, &rows, &pair.gate);
  call.tiles.Find(place.index, 2, &rows, &pair.down);
  pair.gate_partial = PartialOf(call, place.index * call.outputs() + place.output - call.first_output[1]);
  for (int i = 0; i < 4; ++i) PrefetchLine(pair.down.input_scale + place.column + 32 * i);
}

// A row of gate and up as codes of down, by a warp: its 128 columns are a 128-block of down's inputs. `up`: this block has its last segment.
// Nothing hides what this takes at the end of a launch: loads stand first, and gate and up go side by side.
template <Exl3Form kForm>
class PairEnd {
 public:
  __device__ PairEnd(const Exl3Call& call, const SmallPlace& place, const SmallPair& pair)
      : call_(call), place_(place), pair_(pair), output_(place.output - call.first_output[1]), column_(place.column + 4 * static_cast<int>(threadIdx.x & 31)),
        of_gate_(pair.gate, column_), of_up_(place.job, column_), scale_(*reinterpret_cast<const float4*>(pair.down.input_scale + column_)) {}

  template <class Sums>
  __device__ void Run(int row, const Sums& own) const {
    constexpr int kLast = contract::kSegments - 1;
    const std::int64_t pair = place_.tile.begin + row;
    const float weight = call_.Weight(pair);
    const SmallPartial<kInteger> of_gate(pair_.gate_partial, call_.tiles.tile_rows, row), of_up(place_.partial, call_.tiles.tile_rows, row);
    RowSums gate, up;
    const auto receive = [&] {
      const bool there = of_gate.template Receive<contract::kSegments>(gate);
      return of_up.template Receive<kLast>(up) && there;
    };
    bool there = receive();  // on its way while the block's own segment is added up
    up.Set(kLast, own.Row(row));
    while (!__all_sync(0xffffffffu, there)) there = receive();
    of_gate.Clear();
    of_up.Clear();
    float v[2][4];
    gate.template Fold<kInteger>(v[0]);
    up.template Fold<kInteger>(v[1]);
    ButterflyWarp(v);
    of_gate_.Apply(v[0]);
    of_up_.Apply(v[1]);
    StoreCodes(pair, v, weight);
  }
  __device__ void Announce() const { AnnounceInputs(call_, place_.index, output_); }

 private:
  static constexpr bool kInteger = kForm != Exl3Form::kHalf;

  __device__ void StoreCodes(std::int64_t pair, const float (&v)[2][4], float weight) const {
    float t[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      t[i] = column_ + i < pair_.gate.out_features ? BF16Value(Swiglu(BF16Value(BF16Bits(v[0][i])), BF16Value(BF16Bits(v[1][i])), weight, call_.input.limit)) : 0.0f;
    }
    ScaleInput(scale_, t);
    const int blocks = call_.down.in / 128;
    const std::int64_t row_bytes = std::int64_t{blocks} * 8 * kCodeTileBytes<kForm>;
    std::byte* block = call_.down.codes.codes + call_.terms() * pair * row_bytes + output_ * 8 * kCodeTileBytes<kForm>;
    if (PrepareSmallBlock<kForm>(pair_.down, t, block, row_bytes, call_.down.codes.scale_sums + pair * blocks + output_) && call_.overflow) *call_.overflow = 1;
  }

  const Exl3Call& call_;
  const SmallPlace& place_;
  const SmallPair& pair_;
  const int output_, column_;
  const OutputTerms of_gate_, of_up_;
  const float4 scale_;
};

// A row of the outputs, by a warp; this block has its last segment.
template <Exl3Form kForm>
class OutputEnd {
 public:
  __device__ OutputEnd(const Exl3Call& call, const SmallPlace& place)
      : call_(call), place_(place), column_(place.column + 4 * static_cast<int>(threadIdx.x & 31)), terms_(place.job, column_) {}

  template <class Sums>
  __device__ void Run(int row, const Sums& own) const {
    constexpr bool kInteger = kForm != Exl3Form::kHalf;
    constexpr int kLast = contract::kSegments - 1;
    const SmallPartial<kInteger> partial(place_.partial, call_.tiles.tile_rows, row);
    RowSums sums;
    bool there = partial.template Receive<kLast>(sums);  // on its way while the block's own segment is added up
    sums.Set(kLast, own.Row(row));
    while (!__all_sync(0xffffffffu, there)) there = partial.template Receive<kLast>(sums);
    partial.Clear();
    float v[1][4];
    sums.template Fold<kInteger>(v[0]);
    ButterflyWarp(v);
    terms_.Apply(v[0]);
    StoreRow(call_, place_.job, place_.part, place_.tile.begin + row, column_, v[0]);
  }

 private:
  const Exl3Call& call_;
  const SmallPlace& place_;
  const int column_;
  const OutputTerms terms_;
};

// The block's work after its product, whose sums are in shared memory: hands them on, or finishes the rows of its outputs with what the other segments
// hand on. A warp a row. `kExperts`: a call of gates, ups and downs.
template <class Sums, bool kExperts>
__device__ __forceinline__ void FinishSmall(const Exl3Call& call, const SmallPlace& place, const SmallPair& pair, const Sums& sums) {
  constexpr Exl3Form kForm = Sums::kForm;
  const auto for_rows = [&](auto&& run) {
    for (int row = static_cast<int>(threadIdx.x) / 32; row < place.tile.rows; row += static_cast<int>(blockDim.x) / 32) run(row);
  };
  if (!Finishes<kExperts>(place)) {
    for_rows([&](int row) { SmallPartial<kForm != Exl3Form::kHalf>(place.partial, call.tiles.tile_rows, row).Send(place.segment, sums.Row(row)); });
  } else if (kExperts && !place.down) {
    const PairEnd<kForm> end(call, place, pair);
    for_rows([&](int row) { end.Run(row, sums); });
    end.Announce();
  } else {
    const OutputEnd<kForm> end(call, place);
    for_rows([&](int row) { end.Run(row, sums); });
  }
  if (kExperts && place.down) CountWaiter(call, place);
}

}  // namespace lockstep::kernels
