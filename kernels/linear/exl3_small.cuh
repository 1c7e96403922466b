// EXL3 products of up to eight code rows: decode, short suffixes, experts with few picks. A block takes 128 outputs, one K segment and one tile;
// each warp streams two 16-column strips through its own ring in shared memory and decodes them straight into MMA fragments, with the weights'
// columns as the m of the product and the rows as its n. One or two rows are prepared here, while the first weights are on their way. Where
// blocks are few, more warps share the 128-blocks of the segment. The last of an output's four segments to arrive folds them and finishes the rows.
// All rates of a form in one kernel, so that matrices of any mix share a launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear/async_copy.cuh"
#include "kernels/linear/exl3_small_sums.cuh"

namespace lockstep::kernels {

inline constexpr int kSmallStages = 3, kSmallThreads = 32 * kSmallWarps;  // of a group of warps that shares the outputs
inline constexpr int kMaxSmallGroups = 8, kMaxSmallThreads = kMaxSmallGroups * kSmallThreads;  // that share the segment; so 64 registers

__host__ __device__ constexpr int MaxSegmentBlocks(int in) { return (in / 128 + contract::kSegments - 1) / contract::kSegments; }

// Shared memory of a block: codes, scales and sums of the rows, sums of 128-blocks of the later groups, a ring a warp. Byte offsets.
struct SmallLayout {
  int code_row, scale_sums, sums, rings;

  template <Exl3Form kForm>
  static __host__ __device__ SmallLayout Of(int in, int rows, int groups) {
    const int blocks = MaxSegmentBlocks(in);
    SmallLayout layout;
    layout.code_row = blocks * 8 * kCodeTileBytes<kForm> + kCodeTileBytes<kForm>;  // lanes of a row apart by whole phases of the banks
    layout.scale_sums = rows * (kForm == Exl3Form::kInt16 ? 2 : 1) * layout.code_row;
    layout.sums = layout.scale_sums + (kForm == Exl3Form::kHalf ? 0 : (rows * blocks * static_cast<int>(sizeof(ScaleSum)) + 15) / 16 * 16);
    layout.rings = layout.sums + (groups > 1 ? blocks * rows * kExl3Columns * 4 : 0);
    return layout;
  }
};

// Where a block works.
struct SmallPlace {
  RowTile tile;
  Exl3Job job;
  int index, part;  // of the tile, of the call
  int first_block, blocks;  // of the segment
  int column;  // first output of the block
};

// What a warp has to do: 128-blocks begin .. end - 1 of the segment for two strips. Half a warp copies each strip, 128 inputs a stage.
struct SmallShare {
  int begin, end;
  const std::byte* from;  // the lane's first 16 bytes of the next stage
  std::byte* ring;

  __device__ SmallShare(const Exl3Call& call, const SmallPlace& place, int groups, std::byte* rings) {
    const int group = static_cast<int>(threadIdx.x) / kSmallThreads, warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x & 31;
    const int block_bytes = 128 * place.job.bits_x2;  // of a strip
    const int shift = 31 - __clz(groups);  // a power of two
    begin = place.blocks * group >> shift;
    end = place.blocks * (group + 1) >> shift;
    const int strip = place.column / 16 + kSmallStrips * (warp % kSmallWarps) + lane / 16, block = strip * (call.in / 128) + place.first_block + begin;
    from = reinterpret_cast<const std::byte*>(place.job.tiles) + static_cast<std::int64_t>(block) * block_bytes + lane % 16 * 16;
    ring = rings + warp * kSmallStages * kSmallStrips * block_bytes;
  }

  // All stages but one, a group of copies each.
  __device__ void FetchFirst(int bits_x2) {
    std::byte* to = ring + (threadIdx.x & 31) / 16 * (128 * bits_x2) + threadIdx.x % 16 * 16;
    for (int s = 0; s < kSmallStages - 1; ++s) {
#pragma unroll 1
      for (int chunk = threadIdx.x % 16; begin + s < end && chunk < 8 * bits_x2; chunk += 16) {
        const int at = (chunk - threadIdx.x % 16) * 16;
        CopyAsync16(to + at, from + at);
      }
      from += 128 * bits_x2;
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
      if (16 * (i + 1) <= kChunks || 16 * i + static_cast<int>(threadIdx.x) % 16 < kChunks) CopyAsync16(to + i * 256, from + i * 256);
    }
    from += 16 * kChunks;
  }
};

// The prepared rows' codes, scales and sums of the segment, to shared memory.
template <Exl3Form kForm>
__device__ void CopyCodes(const Exl3Call& call, const SmallPlace& place, const SmallLayout& layout, std::byte* shared) {
  const int chunks = place.blocks * 8 * kCodeTileBytes<kForm> / 16, rows = call.terms() * place.tile.rows;
  const std::int64_t blocks = call.in / 128, row_bytes = blocks * 8 * kCodeTileBytes<kForm>;
  const std::int64_t slot = call.slot_is_row ? place.tile.begin : call.tiles.SlotOf(place.index, place.part);
  const std::byte* from = call.small.codes + call.terms() * slot * row_bytes + place.first_block * 8 * kCodeTileBytes<kForm>;
  for (int i = static_cast<int>(threadIdx.x); i < rows * chunks; i += static_cast<int>(blockDim.x)) {
    const int row = i / chunks, chunk = i % chunks;
    CopyAsync16(shared + row * layout.code_row + chunk * 16, from + row * row_bytes + chunk * 16);
  }
  if constexpr (kForm != Exl3Form::kHalf) {
    auto* scale_sums = reinterpret_cast<ScaleSum*>(shared + layout.scale_sums);
    for (int i = static_cast<int>(threadIdx.x); i < place.tile.rows * place.blocks; i += static_cast<int>(blockDim.x)) {
      scale_sums[i] = call.small.scale_sums[(slot + i / place.blocks) * blocks + place.first_block + i % place.blocks];
    }
  }
  CopyCommit();
  CopyWait<0>();
}

// The same from the rows themselves.
template <Exl3Form kForm>
__device__ void PrepareCodes(const Exl3Call& call, const SmallPlace& place, const SmallLayout& layout, std::byte* shared) {
  auto* scale_sums = reinterpret_cast<ScaleSum*>(shared + layout.scale_sums);
  const bool overflow = PrepareSmallRows<kForm, false>(call, place.job, place.part, place.tile, place.first_block, place.blocks, shared, layout.code_row, scale_sums);
  if (overflow && call.overflow) *call.overflow = 1;
}

// Scales that the block will need: of its inputs, if it prepares them, and of its outputs.
__device__ inline void PrefetchScales(const Exl3Call& call, const SmallPlace& place) {
  const int lines = (call.prepared ? 0 : place.blocks * 4) + 4, i = static_cast<int>(threadIdx.x);
  if (i < 4) PrefetchLine(place.job.output_scale + place.column + 32 * i);
  else if (i < lines) PrefetchLine(place.job.input_scale + place.first_block * 128 + 32 * (i - 4));
}

// The segment's part of the rows' corrections (family I), by a warp.
__device__ inline void StoreCorrections(const SmallRows& rows, float* z) {
  const int row = threadIdx.x & 31;
  if (row >= rows.rows) return;
  float fold = 0.0f;
  for (int b = 0; b < rows.blocks; ++b) {
    const ScaleSum& block = rows.scale_sums[row * rows.blocks + b];
    fold = contract::Fma(static_cast<float>(block.sum), block.scale, fold);
  }
  z[row] = fold;
}

// A warp's share, whose first stages are on their way. `codes`: its first row codes, a lane's own.
template <int kB2, class Sums>
__device__ void MultiplyShare(SmallShare& share, const std::byte* codes, bool store, Sums& sums) {
  constexpr int kStage = kSmallStrips * 128 * kB2, kLast = (kSmallStages - 1) * kStage, kTileWords = 4 * kB2;
  using Codes = std::conditional_t<Sums::kForm == Exl3Form::kHalf, uint2, uint4>;
  const RunReader<kB2> reader;
  const auto* row_codes = reinterpret_cast<const Codes*>(codes);
  int now = 0, before = kLast;  // bytes into the ring
  for (int block = share.begin; block < share.end; ++block) {
    CopyWait<kSmallStages - 2>();
    __syncwarp();
    if (block + kSmallStages - 1 < share.end) share.Fetch<kB2>(before);
    CopyCommit();
    sums.BeginBlock();
    const auto* words = reinterpret_cast<const std::uint32_t*>(share.ring + now);
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      const Codes tile_codes = row_codes[tile * 4];
#pragma unroll
      for (int s = 0; s < kSmallStrips; ++s) {
        std::uint32_t state[8];
        reader.template States<Sums::kPipes>(words + (s * 8 + tile) * kTileWords, state);
        sums.Multiply(s, state, tile_codes);
      }
    }
    if (store) sums.StoreBlock(block);
    else sums.EndBlock(block);
    row_codes += 32;
    before = now;
    now = now == kLast ? 0 : now + kStage;
  }
}

template <class Sums>
__device__ void MultiplyShareOfRate(int bits_x2, SmallShare& share, const std::byte* codes, bool store, Sums& sums) {
  switch (bits_x2) {
    case 2: return MultiplyShare<2>(share, codes, store, sums);
    case 3: return MultiplyShare<3>(share, codes, store, sums);
    case 4: return MultiplyShare<4>(share, codes, store, sums);
    case 5: return MultiplyShare<5>(share, codes, store, sums);
    case 6: return MultiplyShare<6>(share, codes, store, sums);
    case 7: return MultiplyShare<7>(share, codes, store, sums);
    case 8: return MultiplyShare<8>(share, codes, store, sums);
    case 10: return MultiplyShare<10>(share, codes, store, sums);
    case 12: return MultiplyShare<12>(share, codes, store, sums);
    case 14: return MultiplyShare<14>(share, codes, store, sums);
    default: return MultiplyShare<16>(share, codes, store, sums);
  }
}

// Writes the segment's sums [rows][128] and its part of the corrections [rows].
template <class Sums>
__device__ void SmallProduct(const Exl3Call& call, const SmallPlace& place, float* partial, float* z) {
  extern __shared__ uint4 shared_words[];
  auto* shared = reinterpret_cast<std::byte*>(shared_words);
  const int group = static_cast<int>(threadIdx.x) / kSmallThreads, groups = static_cast<int>(blockDim.x) / kSmallThreads;
  const SmallLayout layout = SmallLayout::Of<Sums::kForm>(call.in, call.max_tile_rows, groups);
  SmallShare share(call, place, groups, shared + layout.rings);
  share.FetchFirst(place.job.bits_x2);
  PrefetchScales(call, place);
  WaitForKernelsBefore();
  if (call.prepared) CopyCodes<Sums::kForm>(call, place, layout, shared);
  else PrepareCodes<Sums::kForm>(call, place, layout, shared);
  __syncthreads();

  const SmallRows rows = {place.tile.rows, place.blocks, reinterpret_cast<const ScaleSum*>(shared + layout.scale_sums), reinterpret_cast<int*>(shared + layout.sums)};
  const int code_row = min(static_cast<int>(threadIdx.x & 31) / 4, call.terms() * place.tile.rows - 1);  // columns past the rows are not looked at
  const std::byte* codes = shared + code_row * layout.code_row + share.begin * 8 * kCodeTileBytes<Sums::kForm>;
  Sums sums(rows);
  MultiplyShareOfRate(place.job.bits_x2, share, codes + (threadIdx.x & 3) * (kCodeTileBytes<Sums::kForm> / 4), group > 0, sums);

  if constexpr (Sums::kForm != Exl3Form::kHalf) {
    if (groups > 1) __syncthreads();
    for (int block = share.end; group == 0 && block < place.blocks; ++block) sums.AddStored(block);
    if (threadIdx.x >= blockDim.x - 32) StoreCorrections(rows, z);
  }
  if (group == 0) sums.Store(partial);
}

// True in the block that arrives last of `expected`; what the others wrote is then visible to it. The barriers make one thread's order the block's.
__device__ inline bool LastToArrive(std::int32_t* arrivals, int expected) {
  __shared__ int ticket;
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(ticket) : "l"(arrivals) : "memory");
    if (ticket == expected - 1) *arrivals = 0;
  }
  __syncthreads();
  return ticket == expected - 1;
}

// Jobs that the device makes are read where they lie, so the first kernel that does waits for who made them before it lets the next one start; the
// later ones of the call may then read them at once. Weights and the host's jobs are older than any kernel.
__device__ inline void BeginSmall(const Exl3Call& call) {
  const bool first = call.tiles.experts.blob_X && !call.prepared;
  if (first) WaitForKernelsBefore();
  StartNextKernel();
}

// Where the segments of 128 outputs of a tile leave their sums [4][tile_rows][128] and corrections [4][tile_rows].
struct SmallPartial {
  float *sums, *z;
  int rows;

  __device__ SmallPartial(const Exl3Call& call, int tile, int output) : rows(call.tiles.tile_rows) {
    sums = call.partial + static_cast<std::int64_t>(tile * call.outputs() + output) * SmallPartialFloats(rows);
    z = sums + contract::kSegments * rows * kExl3Columns;
  }

  // The lane's four columns of a row from all segments; family I: corrected.
  template <bool kInteger>
  __device__ void Fold(int row, float (&v)[4]) const {
    float4 s[contract::kSegments];
    float correction[contract::kSegments] = {};
#pragma unroll
    for (int i = 0; i < contract::kSegments; ++i) {
      s[i] = __ldcg(reinterpret_cast<const float4*>(sums + (i * rows + row) * kExl3Columns) + (threadIdx.x & 31));
      if (kInteger) correction[i] = __ldcg(z + i * rows + row);
    }
    v[0] = contract::FoldSegments(s[0].x, s[1].x, s[2].x, s[3].x), v[1] = contract::FoldSegments(s[0].y, s[1].y, s[2].y, s[3].y);
    v[2] = contract::FoldSegments(s[0].z, s[1].z, s[2].z, s[3].z), v[3] = contract::FoldSegments(s[0].w, s[1].w, s[2].w, s[3].w);
    if (kInteger) CorrectSums(contract::FoldSegments(correction[0], correction[1], correction[2], correction[3]), v);
  }
};

// The rows of gate and up, both finished, as codes of down: a warp a row, whose 128 columns are a 128-block of down's inputs. Nothing hides what this
// takes at the end of a launch: loads stand first, and gate and up go side by side.
template <Exl3Form kForm>
__device__ void FinishPair(const Exl3Call& call, int tile, int output) {
  constexpr bool kInteger = kForm != Exl3Form::kHalf;
  RowTile rows;
  Exl3Job gate, up, down;
  call.tiles.Find(tile, 0, &rows, &gate);
  call.tiles.Find(tile, 1, &rows, &up);
  call.tiles.Find(tile, 2, &rows, &down);
  const int column = output * kExl3Columns + 4 * static_cast<int>(threadIdx.x & 31), blocks = call.first_output[1];
  const OutputTerms of_gate(gate, column), of_up(up, column);
  const float4 scale = *reinterpret_cast<const float4*>(down.input_scale + column);
  const SmallPartial gate_partial(call, tile, output), up_partial(call, tile, blocks + output);
  const std::int64_t row_bytes = std::int64_t{blocks} * 8 * kCodeTileBytes<kForm>;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < rows.rows; r += static_cast<int>(blockDim.x) / 32) {
    const std::int64_t row = rows.begin + r;
    const float weight = call.input.weight ? call.input.weight[row] : 1.0f;
    float v[2][4], t[4];
    gate_partial.Fold<kInteger>(r, v[0]);
    up_partial.Fold<kInteger>(r, v[1]);
    ButterflyWarp(v);
    of_gate.Apply(v[0]);
    of_up.Apply(v[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      t[i] = column + i < gate.out_features ? BF16Value(Swiglu(BF16Value(BF16Bits(v[0][i])), BF16Value(BF16Bits(v[1][i])), weight, call.input.limit)) : 0.0f;
    }
    ScaleInput(scale, t);
    std::byte* block = call.down.codes + call.terms() * row * row_bytes + output * 8 * kCodeTileBytes<kForm>;
    if (PrepareSmallBlock<kForm>(down, t, block, row_bytes, call.down.scale_sums + row * blocks + output) && call.overflow) *call.overflow = 1;
  }
}

// The block's work after its product: the last one of an output finishes its rows.
template <Exl3Form kForm>
__device__ void FinishSmall(const Exl3Call& call, const SmallPlace& place, int tile, int output) {
  std::int32_t* arrivals = call.arrivals + tile * call.outputs();
  if (call.down.codes) {
    const int of_gate = place.part == 0 ? output : output - call.first_output[1];
    if (LastToArrive(arrivals + of_gate, 2 * contract::kSegments)) FinishPair<kForm>(call, tile, of_gate);
    return;
  }
  if (!LastToArrive(arrivals + output, contract::kSegments)) return;
  const SmallPartial partial(call, tile, output);
  const int column = place.column + 4 * static_cast<int>(threadIdx.x & 31);
  const OutputTerms terms(place.job, column);
  for (int row = static_cast<int>(threadIdx.x) / 32; row < place.tile.rows; row += static_cast<int>(blockDim.x) / 32) {
    float v[1][4];
    partial.Fold<kForm != Exl3Form::kHalf>(row, v[0]);
    ButterflyWarp(v);
    terms.Apply(v[0]);
    StoreRow(call, place.job, place.part, place.tile.begin + row, column, v[0]);
  }
}

// Block (segment + 4 * (128 outputs of some part), tile). `product(call, place, sums, z)` writes the segment's sums and corrections.
template <Exl3Form kForm, class Product>
__device__ void SmallBlock(const Exl3Call& call, std::int64_t first_tile, Product product) {
  BeginSmall(call);
  const int tile = static_cast<int>(first_tile + blockIdx.y), segment = static_cast<int>(blockIdx.x) % contract::kSegments;
  const int output = static_cast<int>(blockIdx.x) / contract::kSegments;
  SmallPlace place;
  place.index = tile;
  place.part = 0;
#pragma unroll
  for (int p = 1; p < kExl3Parts; ++p) place.part += p < call.tiles.parts && output >= call.first_output[p];
  place.column = (output - call.first_output[place.part]) * kExl3Columns;
  if (!call.tiles.Find(tile, place.part, &place.tile, &place.job) || place.column >= place.job.out) {
    WaitForKernelsBefore();  // this kernel must not end before the one before it
    return;
  }
  place.first_block = contract::FirstBlock(call.in / 128, segment);
  place.blocks = contract::FirstBlock(call.in / 128, segment + 1) - place.first_block;
  const SmallPartial partial(call, tile, output);
  product(call, place, partial.sums + segment * partial.rows * kExl3Columns, partial.z + segment * partial.rows);
  FinishSmall<kForm>(call, place, tile, output);
}

// Launches `kernel` over all tiles of the call with room for the widest rate among its jobs. Groups of warps are as many as fill the device and
// have 128-blocks to share.
template <Exl3Form kForm, class Kernel>
void LaunchSmall(Kernel* kernel, const Exl3Call& call, int max_bits_x2, CudaStream& stream) {
  const auto shared = [&](int groups) {
    return SmallLayout::Of<kForm>(call.in, call.max_tile_rows, groups).rings + groups * kSmallWarps * kSmallStages * kSmallStrips * 128 * max_bits_x2;
  };
  const std::int64_t blocks = std::int64_t{call.outputs()} * contract::kSegments * call.tiles.count, processors = stream.processors();
  const auto fits = [&](int groups) {
    const std::int64_t at_once = (blocks + processors - 1) / processors;  // on a multiprocessor
    return groups <= MaxSegmentBlocks(call.in) && at_once * groups * kSmallThreads <= 1024 && at_once * (shared(groups) + 1024) <= stream.shared_bytes();
  };
  int groups = 1;
  while (kForm != Exl3Form::kHalf && groups < kMaxSmallGroups && fits(2 * groups)) groups *= 2;
  AllowShared(kernel, stream.device());
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(static_cast<unsigned>(call.outputs() * contract::kSegments), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)));
    Launch(kernel, grid, static_cast<unsigned>(groups * kSmallThreads), static_cast<std::size_t>(shared(groups)), stream, call, begin);
  }
  CheckLaunch("exl3 product of few rows");
}

}  // namespace lockstep::kernels
