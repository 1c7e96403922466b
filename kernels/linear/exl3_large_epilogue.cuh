// The way of a tile of folded sums to its outputs: correction, butterfly, output scale, bias, rounding (docs/numerics.md section 4).
#pragma once

#include <cuda_bf16.h>

#include <cstring>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/row_butterfly.cuh"

namespace lockstep::kernels {

// After a segment: s0, then a = s0 + s1, and s2 wait in the folds, and y is to start anew (true); after the last, y = a + (s2 + s3).
template <class Fold, class Sums>
__device__ __forceinline__ bool FoldSegmentInto(int segment, Fold first, Fold second, Sums& y) {
  if (segment == 3) {
    second.AddTo(y);
    first.AddTo(y);
    return false;
  }
  if (segment == 1) first.AddTo(y);
  (segment == 2 ? second : first).Store(y);
  return true;
}

// Folded sums of a tile in shared memory, [rows][128 outputs]: four floats after every 32, so that neither writers nor readers of 16 outputs
// a lane meet in a bank.
struct ResultTile {
  static constexpr int kRow = 148;
  static __device__ constexpr int At(int row, int column) { return row * kRow + column + column / 32 * 4; }
};

// Eight lanes a row, 16 outputs a lane, four rows a warp at a time.
template <bool kInteger>
class TileEpilogue {
 public:
  // `first`: column of the tile's first output.
  __device__ TileEpilogue(const Exl3Call& call, const Exl3Job& job, int part, std::int64_t first)
      : column_(first + 16 * RowButterfly::LaneOfRow()), bias_(job.bias ? job.bias + column_ : nullptr), to_(call.parts[part]), left_(job.out_features - column_) {
#pragma unroll
    for (int i = 0; i < 4; ++i) reinterpret_cast<float4*>(scale_)[i] = reinterpret_cast<const float4*>(job.output_scale + column_)[i];
  }

  // Warp `warp` of `warps`, four rows at a time. `result` in shared memory; `z`: the rows' corrections, family I.
  __device__ void Run(const RowTile& tile, const float* result, const float* z, int warp, int warps) const {
    constexpr int kRows = RowButterfly::kRows;
    for (int first = kRows * warp; first < tile.rows; first += kRows * warps) {
      const int row = first + RowButterfly::RowOfWarp();
      float v[16];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        reinterpret_cast<float4*>(v)[i] = reinterpret_cast<const float4*>(result + ResultTile::At(row, 16 * RowButterfly::LaneOfRow()))[i];
      Transform(kInteger ? z[row] : 0.0f, v);
      if (row < tile.rows) Store((tile.begin + row) * to_.y_stride + column_, v);
    }
  }

 private:
  // All lanes of the warp.
  __device__ void Transform(float z, float (&v)[16]) const {
    if constexpr (kInteger) {
#pragma unroll
      for (float& value : v) value = contract::Fma(value, 1774.0f * 0x1p-18f, -z);
    }
    butterfly_.Transform(v);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = contract::Mul(v[i], scale_[i]);
    if (!bias_) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = contract::Add(v[i], bias_[i]);
  }

  // `at`: the element of the lane's first output.
  __device__ void Store(std::int64_t at, const float (&v)[16]) const {
    if (to_.y_fp32) {
      StoreValues(to_.y_fp32 + at, v, left_);
      return;
    }
    std::uint16_t bits[16];
    BF16Row(v, bits);
    StoreValues(to_.y_bf16 + at, bits, left_);
  }

  static __device__ void BF16Row(const float (&v)[16], std::uint16_t (&bits)[16]) {
    bool nan = false;
#pragma unroll
    for (float value : v) nan = nan || value != value;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      if (nan) {
        bits[i] = BF16Bits(v[i]), bits[i + 1] = BF16Bits(v[i + 1]);
      } else {  // the instruction keeps no payloads
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[i], v[i + 1]);
        bits[i] = __bfloat16_as_ushort(pair.x), bits[i + 1] = __bfloat16_as_ushort(pair.y);
      }
    }
  }

  // The first `left` of 16 elements, 16 bytes at a time where they may.
  template <class T>
  static __device__ void StoreValues(T* to, const T (&v)[16], std::int64_t left) {
    constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
#pragma unroll
    for (int i = 0; i < 16; i += kPiece) {
      if (aligned && i + kPiece <= left) {
        uint4 piece;
        std::memcpy(&piece, v + i, 16);
        *reinterpret_cast<uint4*>(to + i) = piece;
        continue;
      }
#pragma unroll
      for (int j = i; j < i + kPiece; ++j) {
        if (j < left) to[j] = v[j];
      }
    }
  }

  std::int64_t column_;
  const float* bias_;
  const Exl3Part& to_;
  std::int64_t left_;  // outputs from the lane's first on
  RowButterfly butterfly_;
  float scale_[16];
};

}  // namespace lockstep::kernels
