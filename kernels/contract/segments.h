// How a linear's reduction length K is cut (docs/numerics.md, section 2): four segments of whole 128-element
// blocks, from K alone. So split-K, CPU threads and batch sizes never change bits.
#pragma once

#include <cstdint>

#include "kernels/contract/float_ops.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

constexpr int kSegments = 4;
constexpr std::int64_t kSegmentBlock = 128;

// Elements [begin, end); empty if begin == end.
struct SegmentRange {
  std::int64_t begin, end;
};

// First of the blocks floor(s*B/4) .. floor((s+1)*B/4)-1 that segment s, 0 <= s < kSegments, has of B.
template <class Int>
LOCKSTEP_HD Int FirstBlock(Int blocks, Int s) {
  return s * blocks / kSegments;
}

// Segment s of length k, which has B = ceil(k/128) blocks.
LOCKSTEP_HD SegmentRange SegmentOf(std::int64_t k, int s) {
  const std::int64_t blocks = (k + kSegmentBlock - 1) / kSegmentBlock;
  const std::int64_t begin = FirstBlock<std::int64_t>(blocks, s) * kSegmentBlock;
  const std::int64_t end = FirstBlock<std::int64_t>(blocks, s + 1) * kSegmentBlock;
  return {begin < k ? begin : k, end < k ? end : k};
}

// (s0 + s1) + (s2 + s3); F is float or F32x16. An empty segment is +0.
template <class F>
LOCKSTEP_HD F FoldSegments(F s0, F s1, F s2, F s3) {
  return Add(Add(s0, s1), Add(s2, s3));
}

// The folded sum of the segments of k, where of_segment(begin, end) reduces one that is not empty.
template <class Reduction>
LOCKSTEP_INLINE float SumOverSegments(std::int64_t k, Reduction of_segment) {
  float sums[kSegments];
  for (int s = 0; s < kSegments; ++s) {
    const SegmentRange range = SegmentOf(k, s);
    sums[s] = range.begin < range.end ? of_segment(range.begin, range.end) : 0.0f;
  }
  return FoldSegments(sums[0], sums[1], sums[2], sums[3]);
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
