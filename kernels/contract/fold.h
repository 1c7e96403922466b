// Sums in the contract's orders (docs/numerics.md, sections 1 and 2): the halving fold and family F's dot.
#pragma once

#include <cstdint>

#include "kernels/contract/vec.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// fold(x_0 .. x_{n-1}) for n >= 1, padded with +0 to a power of two: for stride P/2, P/4, ..., 1,
// x_i = x_i + x_{i+stride} for i < stride. Uses x as scratch.
LOCKSTEP_INLINE float FoldInPlace(float* x, std::int64_t n) {
  std::int64_t stride = 1;
  while (stride < n) stride *= 2;
  for (stride /= 2; stride > 0; stride /= 2) {
    for (std::int64_t i = 0; i < stride; ++i) x[i] = Add(x[i], i + stride < n ? x[i + stride] : 0.0f);
    n = stride;
  }
  return x[0];
}

// Operands of DotF: 16 consecutive elements from index k, or the first n of them with +0 in the other lanes.
struct F32Elements {
  const float* p;
  LOCKSTEP_INLINE F32x16 At(std::int64_t k) const { return Load(p + k); }
  LOCKSTEP_INLINE F32x16 At(std::int64_t k, int n) const { return LoadN(p + k, n); }
};
struct BF16Elements {
  const std::uint16_t* p;
  LOCKSTEP_INLINE F32x16 At(std::int64_t k) const { return LoadBF16(p + k); }
  LOCKSTEP_INLINE F32x16 At(std::int64_t k, int n) const { return LoadBF16N(p + k, n); }
};

// The 128 lanes of family F in eight vectors: lane l has taken k = l, l+128, ... in ascending order.
struct LanesF {
  F32x16 lanes[8];
};

// The fold of the 128 lanes.
LOCKSTEP_INLINE float Fold(const LanesF& sum) {
  F32x16 half[4];
  for (int i = 0; i < 4; ++i) half[i] = Add(sum.lanes[i], sum.lanes[i + 4]);
  return Fold(Add(Add(half[0], half[2]), Add(half[1], half[3])));
}

// Lanes 16*first .. 16*(first+kVectors)-1 of a dot over n. A lane is left alone beyond n: a product of zeros
// could turn its -0 into +0.
template <int kVectors, class A, class B>
LOCKSTEP_INLINE void AccumulateLanesF(A a, B b, std::int64_t n, int first, F32x16* lanes) {
  F32x16 sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = F32x16(0.0f);
  std::int64_t block = 0;
  for (; block + 128 <= n; block += 128) {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t k = block + 16 * (first + v);
      sum[v] = Fma(a.At(k), b.At(k), sum[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t k = block + 16 * (first + v);
    if (k >= n) break;
    const int count = n - k < 16 ? static_cast<int>(n - k) : 16;
    sum[v] = Select(FirstLanes(count), Fma(a.At(k, count), b.At(k, count), sum[v]), sum[v]);
  }
  for (int v = 0; v < kVectors; ++v) lanes[first + v] = sum[v];
}

// F(a, b) over n: 128 lanes from +0, lane l takes fma(a_k, b_k, lane) for k = l, l+128, ...; then their fold.
template <class A, class B>
LOCKSTEP_INLINE float DotF(A a, B b, std::int64_t n) {
  LanesF sum;
  // AVX2's 16 registers hold 64 lanes and their operands: two passes, each reading every other half kilobyte.
  constexpr int kVectors = LOCKSTEP_ISA_LEVEL == 2 ? 8 : 4;
  for (int first = 0; first < 8; first += kVectors) AccumulateLanesF<kVectors>(a, b, n, first, sum.lanes);
  return Fold(sum);
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
