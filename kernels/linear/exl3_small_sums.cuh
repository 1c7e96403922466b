// What a warp of a small EXL3 product adds up: outputs of two strips of 16 columns for up to eight code rows, the rows as the n of the tensor cores.
#pragma once

#include "kernels/linear/exl3_codes.cuh"
#include "kernels/linear/imma_sm80.cuh"
#include "kernels/linear/mma_sm80.cuh"
#include "kernels/linear/trellis_cuda.cuh"

namespace lockstep::kernels {

inline constexpr int kSmallWarps = 4;  // that share the 128 outputs of a block
static_assert(kSmallWarps * kSmallStrips * 16 == kExl3Columns);

// A block's way into what its rows and warps share: rows of the tile, 128-blocks of the segment.
struct SmallRows {
  int rows, blocks;
  const ScaleSum* scale_sums;  // [rows][blocks], family I
  int* sums;                   // [blocks][rows][128]: exact sums of 128-blocks that warps other than the first four computed
};

// Family I: bytes of the products times code bytes, exact in int32; -510 times the code sum turns b into b - 510.
template <int kTerms>
class IntegerSums {
 public:
  static constexpr Exl3Form kForm = kTerms == 2 ? Exl3Form::kInt16 : Exl3Form::kInt8;

  __device__ explicit IntegerSums(const SmallRows& rows) : rows_(rows) {
    const int lane = threadIdx.x & 31;
    column_ = threadIdx.x / 32 % kSmallWarps * kSmallStrips * 16 + lane / 4;
    first_row_ = (lane & 3) * kRows;
#pragma unroll
    for (int s = 0; s < kSmallStrips; ++s) y_[s][0] = y_[s][1] = y_[s][2] = y_[s][3] = 0.0f;
  }

  __device__ void BeginBlock() {
#pragma unroll
    for (int s = 0; s < kSmallStrips; ++s) sum_[s][0] = sum_[s][1] = sum_[s][2] = sum_[s][3] = 0;
  }

  template <WeightForm kWeight>
  __device__ void Multiply(int strip, const std::uint32_t (&state)[8], const uint4& codes) {
    static_assert(kWeight == WeightForm::kMul1Integer);
    std::uint32_t product[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) product[j] = Mul1Product(state[j]);
    MmaU8S8(sum_[strip], product[0], product[4], product[1], product[5], codes.x, codes.y);
    MmaU8S8(sum_[strip], product[2], product[6], product[3], product[7], codes.z, codes.w);
  }

  // Adds the exact sums of a 128-block of the segment to the outputs, blocks ascending.
  __device__ void EndBlock(int block) {
    ForRows(block, [&](int strip, int i, int, const ScaleSum& row) { Add(strip, i, Exact(strip, i, row), row); });
  }

  // The same for a block whose sums others will add.
  __device__ void StoreBlock(int block) const {
    ForRows(block, [&](int strip, int i, int at, const ScaleSum& row) { rows_.sums[at] = Exact(strip, i, row); });
  }
  __device__ void AddStored(int block) {
    ForRows(block, [&](int strip, int i, int at, const ScaleSum& row) { Add(strip, i, rows_.sums[at], row); });
  }

  __device__ void Store(float* partial) const {
    ForRows(0, [&](int strip, int i, int at, const ScaleSum&) { partial[at] = y_[strip][i]; });
  }

 private:
  static constexpr int kRows = 2 / kTerms;  // of a lane

  // f(strip, index into its sums, index into [block][rows][128], the block's scale and sum of the row) for what the lane has of real rows.
  template <class F>
  __device__ void ForRows(int block, F f) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row_ + r;
      if (row >= rows_.rows) continue;
      const ScaleSum scale_sum = rows_.scale_sums[row * rows_.blocks + block];
      const int at = (block * rows_.rows + row) * kExl3Columns + column_;
#pragma unroll
      for (int s = 0; s < kSmallStrips; ++s) {
        f(s, r, at + 16 * s, scale_sum);
        f(s, r + 2, at + 16 * s + 8, scale_sum);
      }
    }
  }

  __device__ int Exact(int s, int i, const ScaleSum& row) const {
    // int16: columns of a row's high and low parts lie side by side; the high sum times 256 may leave int32, the result does not; so modulo 2^32.
    const unsigned sum = kTerms == 2 ? static_cast<unsigned>(sum_[s][i]) * 256u + static_cast<unsigned>(sum_[s][i + kTerms - 1]) : static_cast<unsigned>(sum_[s][i]);
    return static_cast<int>(sum - 510u * static_cast<unsigned>(row.sum));
  }
  __device__ void Add(int s, int i, int exact, const ScaleSum& row) { y_[s][i] = contract::Fma(__int2float_rn(exact), row.scale, y_[s][i]); }

  SmallRows rows_;
  int column_, first_row_;
  int sum_[kSmallStrips][4];
  float y_[kSmallStrips][4];  // [0, 1]: column g of rows 2q, 2q+1 (int16: [0], row q); [2, 3]: column g+8
};

// Family H: fp16 weights through MMA blocks that run on over the segment, so that the first four warps have all of it.
class HalfSums {
 public:
  static constexpr Exl3Form kForm = Exl3Form::kHalf;

  __device__ explicit HalfSums(const SmallRows& rows) : rows_(rows.rows) {
#pragma unroll
    for (int s = 0; s < kSmallStrips; ++s) sum_[s][0] = sum_[s][1] = sum_[s][2] = sum_[s][3] = 0.0f;
  }
  __device__ void BeginBlock() {}
  template <WeightForm kWeight>
  __device__ void Multiply(int strip, const std::uint32_t (&state)[8], const uint2& codes) {
    FragmentA weights;
    weights.a[0] = DecodePair<kWeight>(state[0], state[1]);
    weights.a[1] = DecodePair<kWeight>(state[4], state[5]);
    weights.a[2] = DecodePair<kWeight>(state[2], state[3]);
    weights.a[3] = DecodePair<kWeight>(state[6], state[7]);
    MmaF16(sum_[strip], weights, codes.x, codes.y);
  }
  __device__ void EndBlock(int) {}
  __device__ void StoreBlock(int) {}

  __device__ void Store(float* partial) const {
    const int lane = threadIdx.x & 31, column = threadIdx.x / 32 % kSmallWarps * kSmallStrips * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = (lane & 3) * 2 + r;
      if (row >= rows_) continue;
#pragma unroll
      for (int s = 0; s < kSmallStrips; ++s) {
        partial[row * kExl3Columns + column + 16 * s] = sum_[s][r];
        partial[row * kExl3Columns + column + 16 * s + 8] = sum_[s][r + 2];
      }
    }
  }

 private:
  int rows_;
  float sum_[kSmallStrips][4];
};

}  // namespace lockstep::kernels
