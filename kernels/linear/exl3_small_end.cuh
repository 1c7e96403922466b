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
  int output, segment;     // 128 outputs of the call's, or of down's
  int first_block, blocks; // of the segment
  int in_blocks;  // of a row
  int column;  // first output of the block
  bool down;   // it belongs to what follows
};

// Where the segments of 128 outputs of a tile leave their sums [4][tile_rows][128] and corrections [4][tile_rows].
struct SmallPartial {
  float *sums, *z;
  int rows;

  // `at`: of all outputs of all tiles.
  __device__ SmallPartial(float* partial, int at, int tile_rows) : rows(tile_rows) {
    sums = partial + static_cast<std::int64_t>(at) * SmallPartialFloats(rows);
    z = sums + contract::kSegments * rows * kExl3Columns;
  }
  __device__ SmallPartial(const Exl3Call& call, const SmallPlace& place)
      : SmallPartial(place.down ? call.down.partial : call.partial, place.index * (place.down ? call.down.outputs : call.outputs()) + place.output,
                     call.tiles.tile_rows) {}

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

// Counts one more 128-block of down's inputs; what the block wrote is then visible to who waits for it.
__device__ inline void AnnounceInputs(const Exl3Call& call, int tile, int block) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::int32_t* ready = call.down.ready + tile * contract::kSegments;
  for (int s = 1; s < contract::kSegments; ++s) ready += block >= contract::FirstBlock(call.down.in / 128, s);
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(ready) : "memory");
}

// Waits for the inputs of a block of down. Those who leave them have earlier blocks, so they have started and end without it. Who waits counts too, so
// that the last one of all outputs leaves zero.
__device__ inline void WaitForInputs(const Exl3Call& call, const SmallPlace& place) {
  if (threadIdx.x == 0) {
    std::int32_t* ready = call.down.ready + place.index * contract::kSegments + place.segment;
    std::int32_t there;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(ready) : "memory");
    } while (there < place.blocks);
    if (atomicAdd(ready, 1) + 1 == place.blocks + place.job.out / kExl3Columns) *ready = 0;
  }
  __syncthreads();
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
  const int column = output * kExl3Columns + 4 * static_cast<int>(threadIdx.x & 31), blocks = call.down.in / 128;
  const OutputTerms of_gate(gate, column), of_up(up, column);
  const float4 scale = *reinterpret_cast<const float4*>(down.input_scale + column);
  const int at = tile * call.outputs() + output;
  const SmallPartial gate_partial(call.partial, at, call.tiles.tile_rows), up_partial(call.partial, at + call.first_output[1], call.tiles.tile_rows);
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
    std::byte* block = call.down.codes.codes + call.terms() * row * row_bytes + output * 8 * kCodeTileBytes<kForm>;
    if (PrepareSmallBlock<kForm>(down, t, block, row_bytes, call.down.codes.scale_sums + row * blocks + output) && call.overflow) *call.overflow = 1;
  }
}

// The block's work after its product: the last one of an output finishes its rows. `kExperts`: a call of gates, ups and downs.
template <Exl3Form kForm, bool kExperts>
__device__ __forceinline__ void FinishSmall(const Exl3Call& call, const SmallPlace& place) {
  const int tile = place.index;
  if (kExperts && !place.down) {
    const int of_gate = place.part == 0 ? place.output : place.output - call.first_output[1];
    if (!LastToArrive(call.arrivals + tile * call.outputs() + of_gate, 2 * contract::kSegments)) return;
    FinishPair<kForm>(call, tile, of_gate);
    AnnounceInputs(call, tile, of_gate);
    return;
  }
  std::int32_t* arrivals = kExperts ? call.down.arrivals + tile * call.down.outputs : call.arrivals + tile * call.outputs();
  if (!LastToArrive(arrivals + place.output, contract::kSegments)) return;
  const SmallPartial partial(call, place);
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
