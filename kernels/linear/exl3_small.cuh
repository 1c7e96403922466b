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
#include "kernels/linear/exl3_small_end.cuh"
#include "kernels/linear/exl3_small_sums.cuh"

namespace lockstep::kernels {

inline constexpr int kSmallThreads = 32 * kSmallWarps;  // of a group of warps that shares the outputs
inline constexpr int kMaxSmallGroups = 8, kMaxSmallThreads = kMaxSmallGroups * kSmallThreads;  // that share the segment; so 64 registers

__host__ __device__ constexpr int MaxSegmentBlocks(int in) { return (in / 128 + contract::kSegments - 1) / contract::kSegments; }

// Shared memory of a block: codes, scales and sums of the rows, sums of the product (SmallRows), a ring a warp. Byte offsets.
struct SmallLayout {
  int code_row, scale_sums, sums, rings;

  template <Exl3Form kForm>
  static __host__ __device__ SmallLayout Of(int in, int rows, int groups) {
    const int blocks = MaxSegmentBlocks(in);
    SmallLayout layout;
    layout.code_row = blocks * 8 * kCodeTileBytes<kForm> + kCodeTileBytes<kForm>;  // lanes of a row apart by whole phases of the banks
    layout.scale_sums = rows * (kForm == Exl3Form::kInt16 ? 2 : 1) * layout.code_row;
    layout.sums = layout.scale_sums + (kForm == Exl3Form::kHalf ? 0 : (rows * blocks * static_cast<int>(sizeof(ScaleSum)) + 15) / 16 * 16);
    layout.rings = layout.sums + (groups > 1 ? blocks : 1) * rows * kExl3Columns * 4;
    return layout;
  }
};

// What a warp has to do: 128-blocks begin .. end - 1 of the segment for two strips. Half a warp copies each strip, 128 inputs a stage.
struct SmallShare {
  int begin, end;
  const std::byte* from;  // the lane's first 16 bytes of the next stage
  std::byte* ring;

  __device__ SmallShare(const SmallPlace& place, int groups, std::byte* rings) {
    const int group = static_cast<int>(threadIdx.x) / kSmallThreads, warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x & 31;
    const int block_bytes = 128 * place.job.bits_x2;  // of a strip
    const int shift = 31 - __clz(groups);  // a power of two
    begin = place.blocks * group >> shift;
    end = place.blocks * (group + 1) >> shift;
    const int strip = place.column / 16 + kSmallStrips * (warp % kSmallWarps) + lane / 16, block = strip * place.in_blocks + place.first_block + begin;
    from = reinterpret_cast<const std::byte*>(place.job.tiles) + static_cast<std::int64_t>(block) * block_bytes + lane % 16 * 16;
    ring = rings + warp * SmallRingBytes(place.job.bits_x2);
  }

  // All stages but one, a group of copies each; `from` stays.
  __device__ void FetchFirst(int bits_x2) const {
    const std::byte* next = from;
    std::byte* to = ring + (threadIdx.x & 31) / 16 * (128 * bits_x2) + threadIdx.x % 16 * 16;
    for (int s = 0; s < SmallStages(bits_x2) - 1; ++s) {
#pragma unroll 1
      for (int chunk = threadIdx.x % 16; begin + s < end && chunk < 8 * bits_x2; chunk += 16) {
        const int at = (chunk - threadIdx.x % 16) * 16;
        CopyAsync16Once(to + at, next + at);
      }
      next += 128 * bits_x2;
      to += kSmallStrips * 128 * bits_x2;
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

// The prepared rows' codes, scales and sums of the segment, to shared memory.
template <Exl3Form kForm>
__device__ void CopyCodes(const Exl3Call& call, const SmallPlace& place, const SmallLayout& layout, std::byte* shared) {
  const int chunks = place.blocks * 8 * kCodeTileBytes<kForm> / 16, rows = call.terms() * place.tile.rows;
  const std::int64_t blocks = place.in_blocks, row_bytes = blocks * 8 * kCodeTileBytes<kForm>;
  const std::int64_t slot = place.down ? place.tile.begin : call.tiles.SlotOf(place.index, place.part);
  const SmallCodes prepared = place.down ? call.down.codes : call.small;
  const std::byte* from = prepared.codes + call.terms() * slot * row_bytes + place.first_block * 8 * kCodeTileBytes<kForm>;
  for (int i = static_cast<int>(threadIdx.x); i < rows * chunks; i += static_cast<int>(blockDim.x)) {
    const int row = i / chunks, chunk = i % chunks;
    CopyAsync16(shared + row * layout.code_row + chunk * 16, from + row * row_bytes + chunk * 16);
  }
  if constexpr (kForm != Exl3Form::kHalf) {
    auto* scale_sums = reinterpret_cast<ScaleSum*>(shared + layout.scale_sums);
    for (int i = static_cast<int>(threadIdx.x); i < place.tile.rows * place.blocks; i += static_cast<int>(blockDim.x)) {
      const auto* scale_sum = prepared.scale_sums + (slot + i / place.blocks) * blocks + place.first_block + i % place.blocks;
      const int2 bits = __ldcg(reinterpret_cast<const int2*>(scale_sum));
      scale_sums[i] = {__int_as_float(bits.x), bits.y};
    }
  }
  CopyCommit();
  CopyWait<0>();
}

// The same from the rows themselves.
template <Exl3Form kForm, bool kNorm>
__device__ __forceinline__ void PrepareCodes(const Exl3Call& call, const SmallPlace& place, const SmallLayout& layout, std::byte* shared) {
  auto* scale_sums = reinterpret_cast<ScaleSum*>(shared + layout.scale_sums);
  const bool overflow = PrepareSegment<kForm, kNorm>(call, place.job, place.part, place.tile, place.first_block, place.blocks, shared, layout.code_row, scale_sums);
  if (overflow && call.overflow) *call.overflow = 1;
}

// Scales that the block will need: of its inputs, if it prepares them, with the norm's weights, and of its outputs.
__device__ inline void PrefetchScales(const Exl3Call& call, const SmallPlace& place) {
  const int lines = (call.prepared || place.down ? 0 : place.blocks * 4) + 4, i = static_cast<int>(threadIdx.x), at = place.first_block * 128 + 32 * (i - 4);
  if (i < 4) PrefetchLine(place.job.output_scale + place.column + 32 * i);
  else if (i < lines) PrefetchLine(place.job.input_scale + at);
  if (call.input.norm_weight && i >= 4 && i < lines && at < call.in_features) PrefetchLine(call.input.norm_weight + at);
}

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
  const int groups = kExperts ? 1 : static_cast<int>(blockDim.x) / kSmallThreads;
  const SmallLayout layout = SmallLayout::Of<Sums::kForm>(kExperts ? max(call.in, call.down.in) : call.in, call.max_tile_rows, groups);
  SmallShare(place, groups, shared + layout.rings).FetchFirst(place.job.bits_x2);
  PrefetchScales(call, place);
  const bool down = kExperts && place.down;
  if (kExperts && !down && Finishes<kExperts>(place) && threadIdx.x == 0) FindPair(call, place, pair);
  if (!place.early) WaitForKernelsBefore();
  if (down) WaitForInputs(call, place);
  if (call.prepared || down) CopyCodes<Sums::kForm>(call, place, layout, shared);
  else PrepareCodes<Sums::kForm, !kExperts>(call, place, layout, shared);
  __syncthreads();

  SmallShare share(place, groups, shared + layout.rings);  // anew: fewer registers to keep while rows are prepared
  share.from += (SmallStages(place.job.bits_x2) - 1) * 128 * place.job.bits_x2;
  const SmallRows rows = {place.tile.rows, place.blocks, groups > 1, reinterpret_cast<const ScaleSum*>(shared + layout.scale_sums),
                          reinterpret_cast<float*>(shared + layout.sums)};
  const int code_row = min(static_cast<int>(threadIdx.x & 31) / 4, call.terms() * place.tile.rows - 1);  // columns past the rows are not looked at
  const std::byte* codes = shared + code_row * layout.code_row + share.begin * 8 * kCodeTileBytes<Sums::kForm>;
  Sums sums(rows);
  MultiplyShareOfJob(place.job, share, codes + (threadIdx.x & 3) * (kCodeTileBytes<Sums::kForm> / 4), sums);
  sums.End();
  __syncthreads();
  FinishSmall<Sums, kExperts>(call, place, pair, sums);
}

// The block's number among those of tiles.
template <bool kExperts>
__device__ inline unsigned SmallIndex(const Exl3Call& call) { return blockIdx.x - (kExperts ? 0 : call.dense.blocks); }

// The tile of a block: those of the call, then those of down.
template <bool kExperts>
__device__ inline int TileOf(const Exl3Call& call, bool* down, int* output) {
  const unsigned unit = SmallIndex<kExperts>(call) / contract::kSegments, outputs = static_cast<unsigned>(call.outputs()), before = static_cast<unsigned>(call.tiles.count) * outputs;
  *down = kExperts && unit >= before;
  const unsigned at = *down ? unit - before : unit, of_tile = *down ? static_cast<unsigned>(call.down.outputs) : outputs;
  *output = static_cast<int>(at % of_tile);
  return static_cast<int>(at / of_tile);
}

// Jobs that the device makes are read where they lie, so the first kernel that does waits for who made them before it lets the next one start; the
// later ones of the call may then read them at once. Weights and the host's jobs are older than any kernel. Returns whether the block needs no wait at
// all: its tile is the shared expert's. The others have waited when the kernel ends.
template <bool kExperts>
__device__ inline bool BeginSmall(const Exl3Call& call) {
  const bool first = call.tiles.experts.blob_X && !call.prepared;
  bool early = false;
  if (kExperts && call.shared_first) {
    bool down;
    int output;
    early = TileOf<kExperts>(call, &down, &output) < call.tiles.experts.shared_tiles;
  }
  if (first && !early) WaitForKernelsBefore();
  StartNextKernel();
  return early;
}

// The block's place; no rows: it has none. Blocks lie in order of tile, outputs of all parts, segment; then those of down.
template <bool kExperts>
__device__ inline void FindPlace(const Exl3Call& call, bool early, SmallPlace& place) {
  place.early = early;
  place.segment = static_cast<int>(SmallIndex<kExperts>(call) % contract::kSegments);
  place.index = TileOf<kExperts>(call, &place.down, &place.output);
  place.part = place.down ? call.tiles.parts : 0;
#pragma unroll
  for (int p = 1; p < kExl3Parts; ++p) place.part += p < call.tiles.parts && !place.down && place.output >= call.first_output[p];
  place.column = (place.output - (place.down ? 0 : call.first_output[place.part])) * kExl3Columns;
  if (!call.tiles.Find(place.index, place.part, &place.tile, &place.job) || place.column >= place.job.out) place.tile.rows = 0;
  place.in_blocks = (place.down ? call.down.in : call.in) / 128;
  place.first_block = contract::FirstBlock(place.in_blocks, place.segment);
  place.blocks = contract::FirstBlock(place.in_blocks, place.segment + 1) - place.first_block;
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

// Blocks of gate, up and down that a multiprocessor runs at once: enough to keep it busy. With more, all experts' gates and ups would end together, and
// nothing would run while the last are finished; multiprocessors that are free early would take more than their share; and registers would be fewer.
inline constexpr int kBlocksAtOnce = 5;

// Launches `experts` over all tiles of a call that has gates, ups and downs, or `others`; no job's warps need rings of more than `ring_bytes`. The others'
// groups of warps are as many as fill the device and have 128-blocks to share.
template <Exl3Form kForm, class Kernel>
void LaunchSmall(Kernel* others, Kernel* experts, const Exl3Call& call, int ring_bytes, CudaStream& stream) {
  const int most_in = std::max(call.in, call.down.in);
  const auto shared = [&](int groups) { return SmallLayout::Of<kForm>(most_in, call.max_tile_rows, groups).rings + groups * kSmallWarps * ring_bytes; };
  const std::int64_t blocks = (std::int64_t{call.outputs()} + call.down.outputs) * contract::kSegments * call.tiles.count, processors = stream.processors();
  if (blocks == 0) return;
  const auto fits = [&](int groups) {
    const std::int64_t at_once = (blocks + processors - 1) / processors;  // on a multiprocessor
    return groups <= MaxSegmentBlocks(most_in) && at_once * groups * kSmallThreads <= 1024 && at_once * (shared(groups) + 1024) <= stream.shared_bytes();
  };
  const bool has_down = call.down.codes.codes;
  int groups = 1;
  while (!has_down && kForm != Exl3Form::kHalf && groups < kMaxSmallGroups && fits(2 * groups)) groups *= 2;
  constexpr int kOfBlock = 2048;  // what a block takes beside its dynamic shared memory, at most
  const int most = has_down ? stream.shared_bytes() / kBlocksAtOnce - kOfBlock : 0;
  Kernel* kernel = has_down ? experts : others;
  Exl3Call placed = call;
  int bytes = std::max(shared(groups), most);
  PlaceDense(groups, stream.shared_bytes() - kOfBlock, &placed.dense);
  if (blocks + placed.dense.blocks > stream.processors()) placed.dense.blocks = 0;  // each block of such a launch has a multiprocessor of its own
  if (placed.dense.blocks > 0) bytes = std::max(bytes, placed.dense.groups * placed.dense.group_bytes);
  else for (int i = 0; i < placed.dense.count; ++i) LaunchFewRowsDense(stream, placed.dense.linears[i]);
  AllowShared(kernel, stream.device());
  Launch(kernel, dim3(static_cast<unsigned>(blocks + placed.dense.blocks)), static_cast<unsigned>(groups * kSmallThreads), static_cast<std::size_t>(bytes), stream, placed);
  CheckLaunch("exl3 product of few rows");
}

}  // namespace lockstep::kernels
