// What a warp of a small EXL3 product adds up: outputs of two strips of 16 columns for up to eight code rows, the rows as the n of the tensor cores.
#pragma once

#include "kernels/linear/exl3_small_end.cuh"
#include "kernels/linear/imma_sm80.cuh"
#include "kernels/linear/mma_sm80.cuh"
#include "kernels/linear/trellis_cuda.cuh"

namespace lockstep::kernels {

inline constexpr int kSmallWarps = 4;  // that share the 128 outputs of a block
static_assert(kSmallWarps * kSmallStrips * 16 == kExl3Columns);

// A block's way into what its rows and warps share: rows of the tile, 128-blocks of the segment.
struct SmallRows {
  int rows, blocks;
  bool apart;                  // several groups of warps share the segment, so its 128-blocks are added up at the end
  const ScaleSum* scale_sums;  // [rows][blocks], family I
  float* sums;                 // [rows][128]: of the segment; apart: of each 128-block, exact sums rounded, [blocks][rows][128]
};

// The lane's four columns of `row` in an array [][128].
__device__ inline float4 FourOf(const float* rows, int row) { return reinterpret_cast<const float4*>(rows + row * kExl3Columns)[threadIdx.x & 31]; }

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

  // Adds the sums of a 128-block of the segment to the outputs, blocks ascending; apart: leaves them in shared memory.
  __device__ void EndBlock(int block) {
    ForRows(block, [&](int strip, int i, int at, const ScaleSum& row) {
      const float sum = __int2float_rn(Exact(strip, i, row));
      if (rows_.apart) rows_.sums[block * rows_.rows * kExl3Columns + at] = sum;
      else y_[strip][i] = contract::Fma(sum, row.scale, y_[strip][i]);
    });
  }
  // What is in registers to shared memory. A block barrier must follow.
  __device__ void End() const {
    if (rows_.apart) return;
    ForRows(0, [&](int strip, int i, int at, const ScaleSum&) { rows_.sums[at] = y_[strip][i]; });
  }

  // The lane's four columns of a row, and the row's correction, by a warp. A lane has the scale and sum of a 128-block: conversions are slow.
  __device__ SegmentSums Row(int row) const {
    const int lane = threadIdx.x & 31;
    SegmentSums own{};
    if (!rows_.apart) own.Set(FourOf(rows_.sums, row));
    for (int first = 0; first < rows_.blocks; first += 32) {
      const int blocks = min(32, rows_.blocks - first);
      const ScaleSum mine = lane < blocks ? rows_.scale_sums[row * rows_.blocks + first + lane] : ScaleSum{};
      const float sum = __int2float_rn(mine.sum);
#pragma unroll 4
      for (int b = 0; b < blocks; ++b) {
        const float scale = __shfl_sync(0xffffffffu, mine.scale, b);
        own.z = contract::Fma(__shfl_sync(0xffffffffu, sum, b), scale, own.z);
        if (rows_.apart) own.Add(FourOf(rows_.sums, (first + b) * rows_.rows + row), scale);
      }
    }
    return own;
  }

 private:
  static constexpr int kRows = 2 / kTerms;  // of a lane

  // f(strip, index into its sums, index into [rows][128], the block's scale and sum of the row) for what the lane has of real rows.
  template <class F>
  __device__ void ForRows(int block, F f) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row_ + r;
      if (row >= rows_.rows) continue;
      const ScaleSum scale_sum = rows_.scale_sums[row * rows_.blocks + block];
      const int at = row * kExl3Columns + column_;
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

  SmallRows rows_;
  int column_, first_row_;
  int sum_[kSmallStrips][4];
  float y_[kSmallStrips][4];  // [0, 1]: column g of rows 2q, 2q+1 (int16: [0], row q); [2, 3]: column g+8
};

// Family H: fp16 weights through MMA blocks that run on over the segment, so that one group of warps has all of it.
class HalfSums {
 public:
  static constexpr Exl3Form kForm = Exl3Form::kHalf;

  __device__ explicit HalfSums(const SmallRows& rows) : rows_(rows.rows), sums_(rows.sums) {
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
  __device__ void End() const {
    const int lane = threadIdx.x & 31, column = threadIdx.x / 32 % kSmallWarps * kSmallStrips * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = (lane & 3) * 2 + r;
      if (row >= rows_) continue;
#pragma unroll
      for (int s = 0; s < kSmallStrips; ++s) {
        sums_[row * kExl3Columns + column + 16 * s] = sum_[s][r];
        sums_[row * kExl3Columns + column + 16 * s + 8] = sum_[s][r + 2];
      }
    }
  }
  __device__ SegmentSums Row(int row) const {
    SegmentSums own{};
    own.Set(FourOf(sums_, row));
    return own;
  }

 private:
  int rows_;
  float* sums_;
  float sum_[kSmallStrips][4];
};

}  // namespace lockstep::kernels
