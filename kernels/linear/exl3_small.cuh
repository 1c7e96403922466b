// EXL3 products of up to eight code rows: decode, short suffixes, experts with few picks. A block takes 128 outputs, one K segment and one tile;
// each warp streams two 16-column strips through its own ring in shared memory and decodes them straight into MMA fragments, with the weights'
// columns as the m of the product and the rows as its n. One or two rows are prepared here, while the first weights are on their way. Where
// blocks are few, more warps share the 128-blocks of the segment. The block of an output's last segment folds the four and finishes the rows.
// All rates of a form in one kernel, so that matrices of any mix share a launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear/async_copy.cuh"
#include "kernels/linear/dense_beside.cuh"
#include "kernels/linear/dense_bf16.h"
#include "kernels/linear/exl3_small_inputs.cuh"
#include "kernels/linear/exl3_small_sums.cuh"

namespace lockstep::kernels {

inline constexpr int kSmallThreads = 32 * kSmallWarps;  // of a group of warps that shares the outputs
inline constexpr int kMaxSmallGroups = 8, kMaxSmallThreads = kMaxSmallGroups * kSmallThreads;  // that share the segment; so 64 registers

// What a warp has to do: 128-blocks begin .. end - 1 of the segment for two strips. Half a warp copies each strip, 128 inputs a stage.
struct SmallShare {
  int begin, end;
  const std::byte* from;  // the lane's first 16 bytes of the next stage
  std::byte* ring;

  // Every warp of every block makes one, so it should take few instructions.
  __device__ SmallShare(const SmallPlace& place, int group_bits, std::byte* rings) {
    const unsigned group = threadIdx.x / kSmallThreads, warp = threadIdx.x / 32, strip = threadIdx.x % kSmallThreads / 16;
    begin = static_cast<int>(place.blocks * group >> group_bits);
    end = static_cast<int>(place.blocks * (group + 1) >> group_bits);
    from = place.weights + static_cast<std::int64_t>(strip * place.in_blocks + begin) * (128 * place.job.bits_x2) + threadIdx.x % 16 * 16;
    ring = rings + warp * SmallRingBytes(place.job.bits_x2);
  }

  // All stages but one, a group of copies each; `from` stays.
  __device__ void FetchFirst(int bits_x2) const {
    const unsigned bytes = 128 * bits_x2, of_lane = threadIdx.x % 16 * 16;
    const std::byte* next = from;
    std::byte* to = ring + threadIdx.x % 32 / 16 * bytes + of_lane;
    for (int s = 0; s < SmallStages(bits_x2) - 1; ++s) {
      const std::byte* stage = next;
      std::byte* place = to;
#pragma unroll 1
      for (unsigned at = begin + s < end ? of_lane : bytes; at < bytes; at += 256) {
        CopyAsync16Once(place, stage);
        place += 256, stage += 256;
      }
      next += bytes;
      to += kSmallStrips * bytes;
      CopyCommit();
    }
  }

  // The next stage to byte `at` of the ring.
  template <int kB2>
  __device__ void Fetch(int at) {
    constexpr int kChunks = 8 * kB2;  // of a strip
    std::byte* to = ring + at + (threadIdx.x & 31) / 16 * (16 * kChunks) + threadIdx.x % 16 * 16;
#pragma unroll
    for (int i = 0; i < (kChunks + 15) / 16; ++i) {
      if (16 * (i + 1) <= kChunks || 16 * i + static_cast<int>(threadIdx.x) % 16 < kChunks) CopyAsync16Once(to + i * 256, from + i * 256);
    }
    from += 16 * kChunks;
  }
};

// A warp's share, whose first stages are on their way. `codes`: its first row codes, a lane's own. Inlined like what calls it: a call would move sums to memory.
template <int kB2, WeightForm kWeight, class Sums>
__device__ __forceinline__ void MultiplyShare(SmallShare& share, const std::byte* codes, Sums& sums) {
  constexpr int kStages = SmallStages(kB2), kStage = kSmallStrips * 128 * kB2, kLast = (kStages - 1) * kStage, kTileWords = 4 * kB2;
  using Codes = std::conditional_t<Sums::kForm == Exl3Form::kHalf, uint2, uint4>;
  const RunReader<kB2> reader;
  const auto* row_codes = reinterpret_cast<const Codes*>(codes);
  int now = 0, before = kLast;  // bytes into the ring
  for (int block = share.begin; block < share.end; ++block) {
    CopyWait<kStages - 2>();
    __syncwarp();
    if (block + kStages - 1 < share.end) share.Fetch<kB2>(before);
    CopyCommit();
    sums.BeginBlock();
    const auto* words = reinterpret_cast<const std::uint32_t*>(share.ring + now);
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      const Codes tile_codes = row_codes[tile * 4];
#pragma unroll
      for (int s = 0; s < kSmallStrips; ++s) {
        std::uint32_t state[8];
        reader.template States<kPipesOf<kWeight>>(words + (s * 8 + tile) * kTileWords, state);
        sums.template Multiply<kWeight>(s, state, tile_codes);
      }
    }
    sums.EndBlock(block);
    row_codes += 32;
    before = now;
    now = now == kLast ? 0 : now + kStage;
  }
}

template <WeightForm kWeight, class Sums>
__device__ __forceinline__ void MultiplyShareOfRate(int bits_x2, SmallShare& share, const std::byte* codes, Sums& sums) {
  switch (bits_x2) {
    case 2: return MultiplyShare<2, kWeight>(share, codes, sums);
    case 3: return MultiplyShare<3, kWeight>(share, codes, sums);
    case 4: return MultiplyShare<4, kWeight>(share, codes, sums);
    case 5: return MultiplyShare<5, kWeight>(share, codes, sums);
    case 6: return MultiplyShare<6, kWeight>(share, codes, sums);
    case 7: return MultiplyShare<7, kWeight>(share, codes, sums);
    case 8: return MultiplyShare<8, kWeight>(share, codes, sums);
    case 10: return MultiplyShare<10, kWeight>(share, codes, sums);
    case 12: return MultiplyShare<12, kWeight>(share, codes, sums);
    case 14: return MultiplyShare<14, kWeight>(share, codes, sums);
    default: return MultiplyShare<16, kWeight>(share, codes, sums);
  }
}

template <class Sums>
__device__ __forceinline__ void MultiplyShareOfJob(const Exl3Job& job, SmallShare& share, const std::byte* codes, Sums& sums) {
  if constexpr (Sums::kForm != Exl3Form::kHalf) {
    MultiplyShareOfRate<WeightForm::kMul1Integer>(job.bits_x2, share, codes, sums);
  } else {
    switch (job.codebook) {
      case Codebook::kMcg: return MultiplyShareOfRate<WeightForm::kMcg>(job.bits_x2, share, codes, sums);
      case Codebook::k3inst: return MultiplyShareOfRate<WeightForm::k3inst>(job.bits_x2, share, codes, sums);
      default: return MultiplyShareOfRate<WeightForm::kMul1Half>(job.bits_x2, share, codes, sums);
    }
  }
}

// The segment's sums, in shared memory for FinishSmall. `kExperts`: gate, up and down in one launch, by one group of warps a block; without it no down,
// and several groups may share the segment.
template <class Sums, bool kExperts>
__device__ __forceinline__ void SmallProduct(const Exl3Call& call, const SmallPlace& place, SmallPair& pair) {
  extern __shared__ uint4 shared_words[];
  auto* shared = reinterpret_cast<std::byte*>(shared_words);
  const SmallLayout& layout = call.layout;
  const int group_bits = kExperts ? 0 : layout.group_bits;
  SmallShare(place, group_bits, shared + layout.rings).FetchFirst(place.job.bits_x2);
  const bool down = kExperts && place.down, prepares = !call.prepared && !down;
  PrefetchScales<kExperts>(call, place, prepares);
  BlockInput<!kExperts> input;
  if (const auto unit = static_cast<int>(threadIdx.x / 32); prepares && unit < place.tile.rows * place.blocks) input = BlockInput<!kExperts>(call, place, unit);
  if (kExperts && !down && Finishes<kExperts>(place) && threadIdx.x == 0) FindPair(call, place, pair);
  if (!place.early) WaitForKernelsBefore();
  if (down) WaitForInputs(call, place);
  if (prepares) PrepareCodes<Sums::kForm>(call, place, input, shared);
  else CopyCodes<Sums::kForm>(call, place, shared);
  __syncthreads();

  SmallShare share(place, group_bits, shared + layout.rings);  // anew: fewer registers to keep while rows are prepared
  share.from += (SmallStages(place.job.bits_x2) - 1) * 128 * place.job.bits_x2;
  const SmallRows rows = {place.tile.rows, place.blocks, group_bits > 0, reinterpret_cast<const ScaleSum*>(shared + layout.scale_sums),
                          reinterpret_cast<float*>(shared + layout.sums)};
  const int code_row = min(static_cast<int>(threadIdx.x & 31) / 4, call.terms() * place.tile.rows - 1);  // columns past the rows are not looked at
  const std::byte* codes = shared + code_row * layout.code_row + share.begin * 8 * kCodeTileBytes<Sums::kForm>;
  Sums sums(rows);
  MultiplyShareOfJob(place.job, share, codes + (threadIdx.x & 3) * (kCodeTileBytes<Sums::kForm> / 4), sums);
  sums.End();
  __syncthreads();
  FinishSmall<Sums, kExperts>(call, place, pair, sums);
}

// Where a block of tiles lies in the order of tile, outputs of all parts, segment; those of down behind all others.
template <bool kExperts>
struct SmallOrder {
  unsigned segment, at, outputs;  // at: of all outputs of all tiles, or of down's; outputs: of a tile
  bool down;

  __device__ explicit SmallOrder(const Exl3Call& call) : outputs(static_cast<unsigned>(call.outputs())) {
    const unsigned block = blockIdx.x - (kExperts ? 0 : call.dense.blocks), before = static_cast<unsigned>(call.tiles.count) * outputs;
    segment = block % contract::kSegments, at = block / contract::kSegments;
    down = kExperts && at >= before;
    if (down) at -= before, outputs = static_cast<unsigned>(call.down.outputs);
  }
};

// Jobs that the device makes are read where they lie, so the first kernel that does waits for who made them before it lets the next one start; the
// later ones of the call may then read them at once. Weights and the host's jobs are older than any kernel. Returns whether the block needs no wait at
// all: its tile is the shared expert's. The others have waited when the kernel ends.
template <bool kExperts>
__device__ inline bool BeginSmall(const Exl3Call& call) {
  const bool first = call.tiles.experts.blob_X && !call.prepared;
  bool early = false;
  if (kExperts && call.shared_first) {
    const SmallOrder<kExperts> order(call);
    early = order.at < static_cast<unsigned>(call.tiles.experts.shared_tiles) * order.outputs;
  }
  if (first && !early) WaitForKernelsBefore();
  StartNextKernel();
  return early;
}

// The block's place; no rows: it has none.
template <bool kExperts>
__device__ inline void FindPlace(const Exl3Call& call, bool early, SmallPlace& place) {
  const SmallOrder<kExperts> order(call);
  place.early = early;
  place.down = order.down;
  place.segment = static_cast<int>(order.segment);
  place.index = static_cast<int>(order.at / order.outputs);
  place.output = static_cast<int>(order.at % order.outputs);
  place.part = place.down ? call.tiles.parts : 0;
#pragma unroll
  for (int p = 1; p < kExl3Parts; ++p) place.part += p < call.tiles.parts && !place.down && place.output >= call.first_output[p];
  place.column = (place.output - (place.down ? 0 : call.first_output[place.part])) * kExl3Columns;
  if (!call.tiles.Find(place.index, place.part, &place.tile, &place.job) || place.column >= place.job.out) place.tile.rows = 0;
  place.in_blocks = (place.down ? call.down.in : call.in) / 128;
  place.first_block = contract::FirstBlock(place.in_blocks, place.segment);
  place.blocks = contract::FirstBlock(place.in_blocks, place.segment + 1) - place.first_block;
  place.weights = reinterpret_cast<const std::byte*>(place.job.tiles) + static_cast<std::int64_t>(place.column / 16 * place.in_blocks + place.first_block) * (128 * place.job.bits_x2);
  place.partial = PartialOf(call, static_cast<int>(order.at) + (order.down ? static_cast<int>(call.tiles.count) * call.outputs() : 0));
}

// A block of four for 128 outputs of some part of a tile.
template <class Sums, bool kExperts>
__device__ __forceinline__ void SmallBlock(const Exl3Call& call) {
  if (!kExperts && blockIdx.x < call.dense.blocks) return MultiplyDense(call.dense);
  __shared__ SmallPlace place;
  __shared__ SmallPair pair;
  const bool early = BeginSmall<kExperts>(call);
  if (threadIdx.x == 0) FindPlace<kExperts>(call, early, place);
  __syncthreads();
  if (place.tile.rows == 0) {
    WaitForKernelsBefore();  // this kernel must not end before the one before it
    return;
  }
  SmallProduct<Sums, kExperts>(call, place, pair);
}

inline int MaxSegmentBlocks(int in) { return (in / 128 + contract::kSegments - 1) / contract::kSegments; }

template <Exl3Form kForm>
SmallLayout SmallLayoutOf(int in, int rows, int group_bits) {
  const int blocks = MaxSegmentBlocks(in);
  SmallLayout layout;
  layout.code_row = blocks * 8 * kCodeTileBytes<kForm> + kCodeTileBytes<kForm>;  // lanes of a row apart by whole phases of the banks
  layout.scale_sums = rows * (kForm == Exl3Form::kInt16 ? 2 : 1) * layout.code_row;
  layout.sums = layout.scale_sums + (kForm == Exl3Form::kHalf ? 0 : (rows * blocks * static_cast<int>(sizeof(ScaleSum)) + 15) / 16 * 16);
  layout.rings = layout.sums + (group_bits > 0 ? blocks : 1) * rows * kExl3Columns * 4;
  layout.group_bits = group_bits;
  return layout;
}

// Blocks of gate, up and down that a multiprocessor runs at once: enough to keep it busy. With more, all experts' gates and ups would end together, and
// nothing would run while the last are finished; multiprocessors that are free early would take more than their share; and registers would be fewer.
inline constexpr int kBlocksAtOnce = 5;

// Launches `experts` over all tiles of a call that has gates, ups and downs, or `others`; no job's warps need rings of more than `ring_bytes`. The others'
// groups of warps are as many as fill the device and have 128-blocks to share.
template <Exl3Form kForm, class Kernel>
void LaunchSmall(Kernel* others, Kernel* experts, const Exl3Call& call, int ring_bytes, CudaStream& stream) {
  const int most_in = std::max(call.in, call.down.in);
  const auto shared = [&](int group_bits) { return SmallLayoutOf<kForm>(most_in, call.max_tile_rows, group_bits).rings + (kSmallWarps << group_bits) * ring_bytes; };
  const std::int64_t blocks = (std::int64_t{call.outputs()} + call.down.outputs) * contract::kSegments * call.tiles.count, processors = stream.processors();
  if (blocks == 0) return;
  const auto fits = [&](int group_bits) {
    const std::int64_t at_once = (blocks + processors - 1) / processors;  // on a multiprocessor
    return (1 << group_bits) <= MaxSegmentBlocks(most_in) && (at_once * kSmallThreads << group_bits) <= 1024 && at_once * (shared(group_bits) + 1024) <= stream.shared_bytes();
  };
  const bool has_down = call.down.codes.codes;
  int group_bits = 0;
  while (!has_down && kForm != Exl3Form::kHalf && (1 << group_bits) < kMaxSmallGroups && fits(group_bits + 1)) ++group_bits;
  constexpr int kOfBlock = 2048;  // what a block takes beside its dynamic shared memory, at most
  const int most = has_down ? stream.shared_bytes() / kBlocksAtOnce - kOfBlock : 0;
  Kernel* kernel = has_down ? experts : others;
  Exl3Call placed = call;
  placed.layout = SmallLayoutOf<kForm>(most_in, call.max_tile_rows, group_bits);
  int bytes = std::max(shared(group_bits), most);
  PlaceDense(1 << group_bits, stream.shared_bytes() - kOfBlock, &placed.dense);
  if (blocks + placed.dense.blocks > stream.processors()) placed.dense.blocks = 0;  // each block of such a launch has a multiprocessor of its own
  if (placed.dense.blocks > 0) bytes = std::max(bytes, placed.dense.groups * placed.dense.group_bytes);
  else for (int i = 0; i < placed.dense.count; ++i) LaunchFewRowsDense(stream, placed.dense.linears[i]);
  AllowShared(kernel, stream.device());
  Launch(kernel, dim3(static_cast<unsigned>(blocks + placed.dense.blocks)), static_cast<unsigned>(kSmallThreads << group_bits), static_cast<std::size_t>(bytes), stream, placed);
  CheckLaunch("exl3 product of few rows");
}

}  // namespace lockstep::kernels
