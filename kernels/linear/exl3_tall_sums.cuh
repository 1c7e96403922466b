// The sums of a tall EXL3 tile in a thread's registers: block sums times scales, segments folded in shared memory, the tile's result.
// Products leave a thread the outputs g (i < 2) and g + 8 of its warp's strip for the code rows 8j + 2q + i%2 of a group, in [4j + i] (lane = 4g + q).
#pragma once

#include "kernels/linear/exl3_tall_tile.cuh"
#include "kernels/linear/unrolled.cuh"

namespace lockstep::kernels {

// y += a group's sums over a 128-block times its rows' scales. Code rows are high and low parts of one row; the rounding of the exact 256 high + low is
// that of one fma.
template <class Tile>
__device__ void AddBlock(const float* scales, const float (&sum)[Tile::kSums], float (&y)[Tile::kResults]) {
  const int q = threadIdx.x & 3;
#pragma unroll
  for (int j = 0; j < Tile::kN / 8; ++j) {
    const float scale = scales[4 * j + q];
#pragma unroll
    for (int i = 0; i < 2; ++i) y[2 * j + i] = contract::Fma(contract::Fma(sum[4 * j + 2 * i], 256.0f, sum[4 * j + 2 * i + 1]), scale, y[2 * j + i]);
  }
}

// Folded sums in shared memory, four of a thread together.
template <class Tile>
class TallFold {
 public:
  using Results = float[Tile::kGroups][Tile::kResults];

  __device__ explicit TallFold(std::byte* memory) : at_(reinterpret_cast<float4*>(memory) + threadIdx.x) {}

  __device__ void Store(const Results& y) {
    Unrolled<kFours>([&](auto i) {
      constexpr int k = 4 * decltype(i)::value;
      at_[decltype(i)::value * kMultiplyThreads] = make_float4(Of<k>(y), Of<k + 1>(y), Of<k + 2>(y), Of<k + 3>(y));
    });
  }
  // y = what was stored + y.
  __device__ void AddTo(Results& y) const {
    Unrolled<kFours>([&](auto i) {
      constexpr int k = 4 * decltype(i)::value;
      const float4 stored = at_[decltype(i)::value * kMultiplyThreads];
      Of<k>(y) = contract::Add(stored.x, Of<k>(y)), Of<k + 1>(y) = contract::Add(stored.y, Of<k + 1>(y));
      Of<k + 2>(y) = contract::Add(stored.z, Of<k + 2>(y)), Of<k + 3>(y) = contract::Add(stored.w, Of<k + 3>(y));
    });
  }

 private:
  static constexpr int kFours = Tile::kGroups * Tile::kResults / 4;

  template <int kIndex, class Array>
  static __device__ auto& Of(Array& y) {
    return y[kIndex / Tile::kResults][kIndex % Tile::kResults];
  }

  float4* at_;
};

template <class Tile>
__device__ void Clear(float (&y)[Tile::kGroups][Tile::kResults]) {
  Unrolled<Tile::kGroups * Tile::kResults>([&](auto i) { y[decltype(i)::value / Tile::kResults][decltype(i)::value % Tile::kResults] = 0.0f; });
}

// After a segment, with two folds in `folds`: see FoldSegmentInto.
template <class Tile>
__device__ void FoldSegment(int segment, std::byte* folds, float (&y)[Tile::kGroups][Tile::kResults]) {
  if (FoldSegmentInto(segment, TallFold<Tile>(folds), TallFold<Tile>(folds + Tile::kFold), y)) Clear<Tile>(y);
}

// A thread's folded sums to the tile's result.
template <class Tile>
__device__ void StoreResult(const float (&y)[Tile::kGroups][Tile::kResults], float* result) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  Unrolled<Tile::kGroups * Tile::kResults>([&](auto at) {
    constexpr int kGroup = decltype(at)::value / Tile::kResults, i = decltype(at)::value % Tile::kResults;
    result[ResultTile::At(kGroup * Tile::kGroupRows + i / 2 * 4 + q, 16 * warp + g + i % 2 * 8)] = y[kGroup][i];
  });
}

}  // namespace lockstep::kernels
