// The inputs of a small EXL3 product: a segment's codes of a tile's rows in shared memory, from where a kernel before left them or from the rows themselves.
#pragma once

#include "kernels/linear/async_copy.cuh"
#include "kernels/linear/exl3_small_end.cuh"

namespace lockstep::kernels {

// The prepared rows' codes, scales and sums of the segment, to shared memory.
template <Exl3Form kForm>
__device__ void CopyCodes(const Exl3Call& call, const SmallPlace& place, std::byte* shared) {
  const int chunks = place.blocks * 8 * kCodeTileBytes<kForm> / 16, rows = call.terms() * place.tile.rows;
  const std::int64_t blocks = place.in_blocks, row_bytes = blocks * 8 * kCodeTileBytes<kForm>;
  const std::int64_t slot = place.down ? place.tile.begin : call.tiles.SlotOf(place.index, place.part);
  const SmallCodes prepared = place.down ? call.down.codes : call.small;
  const std::byte* from = prepared.codes + call.terms() * slot * row_bytes + place.first_block * 8 * kCodeTileBytes<kForm>;
  for (int i = static_cast<int>(threadIdx.x); i < rows * chunks; i += static_cast<int>(blockDim.x)) {
    const int row = i / chunks, chunk = i % chunks;
    CopyAsync16(shared + row * call.layout.code_row + chunk * 16, from + row * row_bytes + chunk * 16);
  }
  if constexpr (kForm != Exl3Form::kHalf) {
    auto* scale_sums = reinterpret_cast<ScaleSum*>(shared + call.layout.scale_sums);
    for (int i = static_cast<int>(threadIdx.x); i < place.tile.rows * place.blocks; i += static_cast<int>(blockDim.x)) {
      const auto* scale_sum = prepared.scale_sums + (slot + i / place.blocks) * blocks + place.first_block + i % place.blocks;
      const int2 bits = __ldcg(reinterpret_cast<const int2*>(scale_sum));
      scale_sums[i] = {__int_as_float(bits.x), bits.y};
    }
  }
  CopyCommit();
  CopyWait<0>();
}

// A 128-block of a row that a warp prepares, four inputs a lane, with what can be read of it before the row is there.
template <bool kNorm>
struct BlockInput {
  int row, block, k;  // of the tile; of the segment; the lane's first input
  const std::uint16_t* x = nullptr;  // the row; null: it is found by its index
  float4 scale, norm_weight;

  BlockInput() = default;
  __device__ BlockInput(const Exl3Call& call, const SmallPlace& place, int unit)
      : row(unit >= place.blocks ? 1 : 0), block(unit - row * place.blocks), k((place.first_block + block) * 128 + 4 * static_cast<int>(threadIdx.x & 31)) {
    static_assert(kExl3OwnRows == 2);
    scale = *reinterpret_cast<const float4*>(place.job.input_scale + k);
    if (kNorm && call.input.norm_weight) norm_weight = *reinterpret_cast<const float4*>(call.input.norm_weight + min(k, call.in_features - 4));  // of zeros, past the end
    if (!call.input.index) x = RowAt(call, place, place.tile.begin + row);
  }

  __device__ void Load(const Exl3Call& call, const SmallPlace& place, float (&t)[4]) const {
    const std::uint16_t* from = x ? x : RowAt(call, place, call.InputRow(place.tile.begin + row));
    LoadFour(from, k, call.in_features, t);
    if (kNorm && call.input.norm_weight) NormFour(call.input, from, call.in_features, norm_weight, t);
    ScaleInput(scale, t);
  }

 private:
  __device__ static const std::uint16_t* RowAt(const Exl3Call& call, const SmallPlace& place, std::int64_t row) {
    const Exl3Part& part = call.parts[place.part];
    return part.x + row * part.x_stride;
  }
};

// The same from the rows themselves, a warp a 128-block; `input` is the warp's first one.
template <Exl3Form kForm, bool kNorm>
__device__ __forceinline__ void PrepareCodes(const Exl3Call& call, const SmallPlace& place, BlockInput<kNorm>& input, std::byte* shared) {
  auto* scale_sums = reinterpret_cast<ScaleSum*>(shared + call.layout.scale_sums);
  bool overflow = false;
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x) / 32; unit < place.tile.rows * place.blocks; unit += static_cast<int>(blockDim.x) / 32) {
    if (unit >= static_cast<int>(blockDim.x) / 32) input = BlockInput<kNorm>(call, place, unit);
    float t[4];
    input.Load(call, place, t);
    std::byte* codes = shared + input.row * call.terms() * call.layout.code_row + input.block * 8 * kCodeTileBytes<kForm>;
    overflow = PrepareSmallBlock<kForm>(place.job, t, codes, call.layout.code_row, scale_sums + unit) || overflow;
  }
  if (overflow && call.overflow) *call.overflow = 1;
}

// Scales that the block will need: of its outputs, and of the inputs that its warps prepare behind their first.
template <bool kExperts>
__device__ inline void PrefetchScales(const Exl3Call& call, const SmallPlace& place, bool prepares) {
  if (threadIdx.x < 4) PrefetchLine(place.job.output_scale + place.column + 32 * threadIdx.x);
  if (!kExperts || !prepares) return;
  constexpr int kLines = 4;  // of a 128-block
  const int line = static_cast<int>(threadIdx.x);
  if (line >= kLines * kSmallWarps && line < kLines * place.blocks) PrefetchLine(place.job.input_scale + place.first_block * 128 + 32 * line);
}

}  // namespace lockstep::kernels
