// The best k of many scores in the contract's total order, ascending by number. A block keeps a segment's order keys in registers, finds the k-th by
// radix and writes the chosen in order; longer rows are cut into segments whose winners are chosen from again. Contract: docs/numerics.md section 6, Selection.
#pragma once

#include "kernels/contract/total_order.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/index_select/index_scores.cuh"

namespace lockstep::kernels {

inline constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32, kSelectItems = 16;
inline constexpr std::int64_t kSelectSegment = kSelectThreads * kSelectItems;

// Candidates that are left of n after a round.
__host__ __device__ inline std::int64_t LeftAfterRound(std::int64_t n, int k) {
  const std::int64_t whole = n / kSelectSegment, rest = n % kSelectSegment;
  return whole * k + (rest < k ? rest : k);
}

inline constexpr unsigned kNanKey = ~0u;

// What a row's candidates are in round 0: scores; or the largest score of each candidate block, the newest block first of all.
enum class Candidates { kEntries, kBlocks };

struct Selection {
  Candidates candidates;
  int k;
  int round;
  const float* score;      // round 0: [rows][stride] of the entries
  const unsigned* key;     // later rounds: [rows][stride] of the candidates that are left
  const std::int32_t* number;
  std::int64_t stride;
  unsigned* next_key;  // null in the last round
  std::int32_t* next_number;
  std::int64_t next_stride;
  std::int32_t* out;  // last round: [rows][k]
  std::int32_t* count;

  // Candidates of a row in this round.
  __device__ std::int64_t Count(const IndexSelectArgs& a, const IndexEntries& entries) const {
    std::int64_t n = candidates == Candidates::kEntries ? entries.count : (entries.visible + a.candidate_block - 1) / a.candidate_block;
    for (int i = 0; i < round; ++i) n = LeftAfterRound(n, k);
    return n;
  }

};

// Order keys of a row's candidates in a round; a NaN's comes before every number's, so that the last round meets it.
struct EntryKeys {
  const float* score;
  __device__ EntryKeys(const IndexSelectArgs&, const IndexEntries&, const Selection& s, std::int64_t t) : score(s.score + t * s.stride) {}
  __device__ unsigned operator()(std::int64_t i) const { return contract::IsNan(score[i]) ? kNanKey : contract::OrderKey(score[i]); }
};
struct BlockKeys {
  const float* score;
  std::int64_t visible;
  int block;
  __device__ BlockKeys(const IndexSelectArgs& a, const IndexEntries& entries, const Selection& s, std::int64_t t)
      : score(s.score + t * s.stride), visible(entries.visible), block(a.candidate_block) {}
  __device__ unsigned operator()(std::int64_t i) const {
    const std::int64_t begin = i * block, end = min(begin + block, visible);
    if (end == visible) return contract::OrderKey(__int_as_float(0x7f800000));
    float top = score[begin];
    for (std::int64_t j = begin + 1; j < end; ++j) top = fmaxf(top, score[j]);
    return contract::OrderKey(top);
  }
};
struct LeftKeys {
  const unsigned* key;
  __device__ LeftKeys(const IndexSelectArgs&, const IndexEntries&, const Selection& s, std::int64_t t) : key(s.key + t * s.stride) {}
  __device__ unsigned operator()(std::int64_t i) const { return key[i]; }
};

// The taken-th largest of the block's keys: key and how many equal to it are taken.
struct KthKey {
  unsigned key;
  int ties;
};

__device__ inline void FindDigit(const unsigned (&histogram)[256], int shift, unsigned& prefix, unsigned& remaining) {
  const int lane = threadIdx.x;
  unsigned own = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) own += histogram[8 * lane + i];
  unsigned from_here = own;  // counts of this lane's digits and the larger ones
#pragma unroll
  for (int stride = 1; stride < 32; stride *= 2) {
    const unsigned other = __shfl_down_sync(0xffffffffu, from_here, stride);
    if (lane + stride < 32) from_here += other;
  }
  const unsigned wanted = remaining;
  __syncwarp();
  if (from_here < wanted || from_here - own >= wanted) return;
  unsigned left = wanted - (from_here - own);
  int digit = 8 * lane + 7;
  while (histogram[digit] < left) left -= histogram[digit--];
  prefix |= static_cast<unsigned>(digit) << shift;
  remaining = left;
}

// Keys of places below n count; place of item i, of which the thread has `items`, is first + 32 i.
__device__ inline KthKey FindKth(const unsigned (&key)[kSelectItems], int items, int first, int n, int taken) {
  __shared__ unsigned histogram[256];
  __shared__ unsigned prefix, remaining;
  if (threadIdx.x == 0) prefix = 0, remaining = static_cast<unsigned>(taken);
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
    __syncthreads();
    const unsigned mask = shift == 24 ? 0u : ~0u << (shift + 8), wanted = prefix;
#pragma unroll
    for (int i = 0; i < kSelectItems; ++i) {
      if (i >= items) break;
      if (first + 32 * i < n && (key[i] & mask) == wanted) atomicAdd(&histogram[(key[i] >> shift) & 255u], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) FindDigit(histogram, shift, prefix, remaining);
    __syncthreads();
  }
  return {prefix, static_cast<int>(remaining)};
}

// Block: a segment (x) of a row (y). Places lie among the threads so that a warp has neighbours, and all warps have some.
template <class Keys>
__global__ void __launch_bounds__(kSelectThreads) SelectKernel(const __grid_constant__ IndexSelectArgs a, const __grid_constant__ Selection s) {
  StartNextKernel();
  if (a.candidates_in) WaitForKernelsBefore();  // kernels make them
  __shared__ int above_W[kSelectWarps], ties_W[kSelectWarps];
  const std::int64_t t = blockIdx.y, begin = blockIdx.x * kSelectSegment;
  const IndexEntries entries(a, t);
  const std::int64_t all = s.Count(a, entries);
  WaitForKernelsBefore();
  if (begin >= all && begin > 0) return;
  const int n = static_cast<int>(min(all - begin, kSelectSegment)), taken = min(n, s.k), items = (n + kSelectThreads - 1) / kSelectThreads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, first = warp * 32 * items + lane;
  const Keys keys(a, entries, s, t);
  unsigned key[kSelectItems];
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kSelectItems; ++i) {
    key[i] = i < items && first + 32 * i < n ? keys(begin + first + 32 * i) : 0u;
    nan = nan || key[i] == kNanKey;
  }
  KthKey kth{0u, 0};
  if (taken < n) kth = FindKth(key, items, first, n, taken);
  const bool every = taken == n;

  int above = 0, ties = 0;
#pragma unroll
  for (int i = 0; i < kSelectItems; ++i) {
    if (i >= items) break;
    const bool inside = first + 32 * i < n;
    above += __popc(__ballot_sync(0xffffffffu, inside && (every || key[i] > kth.key)));
    ties += __popc(__ballot_sync(0xffffffffu, inside && !every && key[i] == kth.key));
  }
  if (lane == 0) above_W[warp] = above, ties_W[warp] = ties;
  nan = __syncthreads_or(nan);
  if (nan && !s.next_key) {
    if (threadIdx.x == 0) s.count[t] = -1;
    return;
  }
  int place = 0, ties_before = 0;
  for (int w = 0; w < warp; ++w) {
    place += above_W[w] + max(0, min(ties_W[w], kth.ties - ties_before));
    ties_before += ties_W[w];
  }
#pragma unroll
  for (int i = 0; i < kSelectItems; ++i) {
    if (i >= items) break;
    const int at = first + 32 * i;
    const bool inside = at < n, tie = inside && !every && key[i] == kth.key;
    const unsigned below = (1u << lane) - 1u, tied = __ballot_sync(0xffffffffu, tie);
    const bool take = inside && (every || key[i] > kth.key || (tie && ties_before + __popc(tied & below) < kth.ties));
    const unsigned takers = __ballot_sync(0xffffffffu, take);
    if (take) {
      const int to = place + __popc(takers & below);
      const auto number = s.round > 0 ? s.number[t * s.stride + begin + at] : static_cast<std::int32_t>(begin + at);
      if (s.next_key) {
        const std::int64_t next = t * s.next_stride + blockIdx.x * static_cast<std::int64_t>(s.k) + to;
        s.next_key[next] = key[i];
        s.next_number[next] = number;
      } else {
        s.out[t * s.k + to] = s.candidates == Candidates::kEntries ? static_cast<std::int32_t>(entries.Number(number)) : number;
      }
    }
    place += __popc(takers);
    ties_before += __popc(tied);
  }
  if (!s.next_key && threadIdx.x == 0) s.count[t] = taken;
}

}  // namespace lockstep::kernels
