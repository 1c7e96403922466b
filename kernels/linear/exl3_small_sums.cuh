// What a warp of a small EXL3 product adds up: outputs of two strips of 16 columns for up to eight code rows, the rows as the n of the tensor cores.
#pragma once

#include <type_traits>

#include "kernels/linear/exl3_small_end.cuh"
#include "kernels/linear/imma_sm80.cuh"
#include "kernels/linear/mma_sm80.cuh"
#include "kernels/linear/trellis_cuda.cuh"

namespace lockstep::kernels {

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

  // The lane's four columns of a row, and the row's correction, by a warp.
  __device__ SegmentSums Row(int row) const {
    SegmentSums own{};
    if (rows_.apart) {
      AddBlocks<true>(row, own);
    } else {
      own.Set(FourOf(rows_.sums, row));
      AddBlocks<false>(row, own);
    }
    return own;
  }

 private:
  static constexpr int kRows = 2 / kTerms;  // of a lane

  // The 128-blocks' corrections and, apart, their sums. Nothing hides this at the end of a launch: the loads of four blocks stand side by side, without a
  // branch between them.
  template <bool kApart>
  __device__ void AddBlocks(int row, SegmentSums& own) const {
    constexpr int kTogether = 4;
    const ScaleSum* terms = rows_.scale_sums + row * rows_.blocks;
    const float4* sums = reinterpret_cast<const float4*>(rows_.sums + row * kExl3Columns) + (threadIdx.x & 31);
    const int step = rows_.rows * kExl3Columns / 4;
    const auto add = [&]<int kCount>(std::integral_constant<int, kCount>) {
      ScaleSum term[kCount];
      [[maybe_unused]] float4 sum[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        term[i] = terms[i];
        if constexpr (kApart) sum[i] = sums[i * step];
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        own.z = contract::Fma(__int2float_rn(term[i].sum), term[i].scale, own.z);
        if constexpr (kApart) own.Add(sum[i], term[i].scale);
      }
      terms += kCount, sums += kCount * step;
    };
    int left = rows_.blocks;
#pragma unroll 1
    for (; left >= kTogether; left -= kTogether) add(std::integral_constant<int, kTogether>());
#pragma unroll 1
    for (; left > 0; --left) add(std::integral_constant<int, 1>());
  }

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
