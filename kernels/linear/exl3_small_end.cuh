// The end of a small EXL3 product: what segments leave behind, and what the last of them to arrive makes of it: outputs, or the codes of an expert's down.
#pragma once

#include "kernels/contract/segments.h"
#include "kernels/linear/exl3_codes.cuh"

namespace lockstep::kernels {

// Where a block works, in shared memory: one thread finds it, and registers are the product's.
struct SmallPlace {
  RowTile tile;
  Exl3Job job;
  int index, part;  // of the tile, of the call
  int first_block, blocks;  // of the segment
  int column;  // first output of the block
};

__device__ inline int OutputOfBlock() { return static_cast<int>(blockIdx.x) / contract::kSegments; }
__device__ inline int SegmentOfBlock() { return static_cast<int>(blockIdx.x) % contract::kSegments; }

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

// The rows of gate and up, both finished, as codes of down: a warp a row, whose 128 columns are a 128-block of down's inputs. Nothing hides what this
// takes at the end of a launch: loads stand first, and gate and up go side by side.
template <Exl3Form kForm>
__device__ __forceinline__ void FinishPair(const Exl3Call& call, int tile, int output) {
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
__device__ __forceinline__ void FinishSmall(const Exl3Call& call, const SmallPlace& place) {
  const int tile = place.index, output = OutputOfBlock();
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

}  // namespace lockstep::kernels
