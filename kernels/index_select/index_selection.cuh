// The best k of many scores in the contract's total order, ascending by number. A block keeps a segment's order keys in registers, finds the k-th by
// radix and writes the chosen in order; longer rows are cut into segments whose winners are chosen from again. Contract: docs/numerics.md section 6, Selection.
#pragma once

#include "kernels/contract/total_order.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/device/warp_reduce.cuh"
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

// Order keys of a row's candidates in a round, and what is read to make them; a NaN's comes before every number's, so that the last round meets it.
struct EntryKeys {
  const float* score;
  __device__ EntryKeys(const IndexSelectArgs&, const IndexEntries&, const Selection& s, std::int64_t t) : score(s.score + t * s.stride) {}
  __device__ float Read(std::int64_t i) const { return score[i]; }
  __device__ static unsigned Key(float score) { return contract::IsNan(score) ? kNanKey : contract::OrderKey(score); }
};
struct BlockKeys {
  const float* score;
  std::int64_t visible;
  int block;
  __device__ BlockKeys(const IndexSelectArgs& a, const IndexEntries& entries, const Selection& s, std::int64_t t)
      : score(s.score + t * s.stride), visible(entries.visible), block(a.candidate_block) {}
  __device__ float Read(std::int64_t i) const {
    const std::int64_t begin = i * block, end = min(begin + block, visible);
    if (end == visible) return __int_as_float(0x7f800000);
    float top = score[begin];
    for (std::int64_t j = begin + 1; j < end; ++j) top = fmaxf(top, score[j]);
    return top;
  }
  __device__ static unsigned Key(float score) { return contract::OrderKey(score); }
};
struct LeftKeys {
  const unsigned* key;
  __device__ LeftKeys(const IndexSelectArgs&, const IndexEntries&, const Selection& s, std::int64_t t) : key(s.key + t * s.stride) {}
  __device__ unsigned Read(std::int64_t i) const { return key[i]; }
  __device__ static unsigned Key(unsigned key) { return key; }
};

// The taken-th largest of a segment's keys: all larger ones are taken and, of those equal to it, the first `ties`.
struct KthKey {
  unsigned key;
  int ties;
};

// A segment's keys, by all threads of a block. Places lie among the threads so that a warp has neighbours, and all warps have some.
struct SegmentKeys {
  static constexpr int kDigits = 2048, kPasses = 3;  // of 11, 11 and 10 bits
  static_assert(kDigits == 4 * kSelectThreads);
  struct Shared {
    unsigned histogram[kPasses][kDigits];
    unsigned digits_W[kSelectWarps], chosen_W[kSelectWarps];
    unsigned prefix, remaining, equal;
  };

  Shared& s;
  const int n, items, warp, lane, first;  // place of item i, of which the thread has `items`, is first + 32 i
  unsigned key[kSelectItems];

  __device__ SegmentKeys(Shared& shared, int count)
      : s(shared), n(count), items((count + kSelectThreads - 1) / kSelectThreads), warp(threadIdx.x / 32), lane(threadIdx.x & 31), first(warp * 32 * items + lane) {}

  __device__ void ClearHistograms() const {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) *reinterpret_cast<uint4*>(&s.histogram[p][4 * threadIdx.x]) = make_uint4(0u, 0u, 0u, 0u);
  }

  // The sum of the warps' words before this one's.
  __device__ unsigned BeforeWarp(const unsigned (&word_W)[kSelectWarps]) const {
    unsigned sum = 0;
#pragma unroll
    for (int w = 0; w < kSelectWarps; ++w) sum += w < warp ? word_W[w] : 0u;
    return sum;
  }

  // The digit of the remaining-th largest key, whose higher digits are `prefix`.
  __device__ void FindDigit(const unsigned (&histogram)[kDigits], int shift, unsigned prefix, unsigned remaining) const {
    const int top = kDigits - 1 - 4 * static_cast<int>(threadIdx.x);  // this thread's digits: top and the three below
    const uint4 four = *reinterpret_cast<const uint4*>(&histogram[top - 3]);
    const unsigned count[4] = {four.w, four.z, four.y, four.x}, own = four.x + four.y + four.z + four.w;
    const unsigned to_here = RunningSumOfWarp(own);
    if (lane == 31) s.digits_W[warp] = to_here;
    __syncthreads();
    const unsigned larger = BeforeWarp(s.digits_W) + to_here - own;
    if (larger < remaining && larger + own >= remaining) {
      unsigned left = remaining - larger;
      int i = 0;
      unsigned equal = count[0];
#pragma unroll
      for (int next = 1; next < 4; ++next) {
        if (i == next - 1 && left > equal) left -= equal, equal = count[next], i = next;
      }
      s.prefix = prefix | static_cast<unsigned>(top - i) << shift, s.remaining = left, s.equal = equal;
    }
    __syncthreads();
  }

  // This thread's keys of the segment, which begins at `begin`: all are asked for, then looked at. Whether one is a NaN's.
  template <class Keys>
  __device__ bool Read(const Keys& keys, std::int64_t begin) {
    decltype(keys.Read(0)) read[kSelectItems];
#pragma unroll
    for (int i = 0; i < kSelectItems; ++i) {
      if (i >= items) break;
      read[i] = {};
      if (first + 32 * i < n) read[i] = keys.Read(begin + first + 32 * i);
    }
    bool nan = false;
#pragma unroll
    for (int i = 0; i < kSelectItems; ++i) {
      if (i >= items) break;
      key[i] = Keys::Key(read[i]);
      nan = nan || key[i] == kNanKey;
    }
    return nan;
  }

  // Histograms are clear.
  __device__ KthKey FindKth(int taken) const {
    unsigned prefix = 0, remaining = static_cast<unsigned>(taken), mask = 0;
    int shift = 21;
#pragma unroll 1
    for (int pass = 0;; ++pass) {
#pragma unroll
      for (int i = 0; i < kSelectItems; ++i) {
        if (i >= items) break;
        if (first + 32 * i < n && (key[i] & mask) == prefix) atomicAdd(&s.histogram[pass][(key[i] & ~mask) >> shift], 1u);
      }
      __syncthreads();
      FindDigit(s.histogram[pass], shift, prefix, remaining);
      prefix = s.prefix, remaining = s.remaining;
      if (s.equal == remaining) return {prefix - 1, 0};  // the rest of the digits makes no difference
      if (shift == 0) return {prefix, static_cast<int>(remaining)};
      mask = ~0u << shift;
      shift = max(shift - 11, 0);
    }
  }

  // To chosen_W: the warp's keys that are larger than the k-th, and equal ones in the low half.
  __device__ void CountChosen(const KthKey& kth) const {
    unsigned chosen = 0;
#pragma unroll
    for (int i = 0; i < kSelectItems; ++i) {
      if (i >= items) break;
      const bool inside = first + 32 * i < n;
      chosen += __popc(__ballot_sync(0xffffffffu, inside && key[i] > kth.key)) << 16 | __popc(__ballot_sync(0xffffffffu, inside && key[i] == kth.key));
    }
    if (lane == 0) s.chosen_W[warp] = chosen;
  }

  // Calls write(place among the chosen, place in the segment, key) for those that are chosen; chosen_W is there.
  template <class Write>
  __device__ void ForChosen(const KthKey& kth, const Write& write) const {
    const unsigned before = BeforeWarp(s.chosen_W);
    int ties_before = static_cast<int>(before & 0xffffu), place = static_cast<int>(before >> 16) + min(ties_before, kth.ties);
#pragma unroll
    for (int i = 0; i < kSelectItems; ++i) {
      if (i >= items) break;
      const int at = first + 32 * i;
      const bool inside = at < n, tie = inside && key[i] == kth.key;
      const unsigned below = (1u << lane) - 1u, tied = __ballot_sync(0xffffffffu, tie);
      const bool take = inside && (key[i] > kth.key || (tie && ties_before + __popc(tied & below) < kth.ties));
      const unsigned takers = __ballot_sync(0xffffffffu, take);
      if (take) write(place + __popc(takers & below), at, key[i]);
      place += __popc(takers);
      ties_before += __popc(tied);
    }
  }
};

// Block: a segment (x) of a row (y); its best go to the next round or, in the last one, to the result.
template <class Keys>
__global__ void __launch_bounds__(kSelectThreads) SelectKernel(const __grid_constant__ IndexSelectArgs a, const __grid_constant__ Selection s) {
  StartNextKernel();
  if (a.candidates_in) WaitForKernelsBefore();  // kernels make them
  __shared__ __align__(16) SegmentKeys::Shared shared;
  const std::int64_t t = blockIdx.y, begin = blockIdx.x * kSelectSegment;
  const IndexEntries entries(a, t);
  const std::int64_t all = s.Count(a, entries);
  if (begin >= all && begin > 0) return WaitForKernelsBefore();
  SegmentKeys segment(shared, static_cast<int>(min(all - begin, kSelectSegment)));
  const Keys keys(a, entries, s, t);
  const std::int64_t next = t * s.next_stride + blockIdx.x * static_cast<std::int64_t>(s.k);
  unsigned* next_keys = s.next_key ? s.next_key + next : nullptr;
  std::int32_t* numbers = s.next_key ? s.next_number + next : s.out + t * s.k;
  segment.ClearHistograms();
  __syncthreads();
  WaitForKernelsBefore();
  const int n = segment.n, taken = min(n, s.k);
  bool nan = segment.Read(keys, begin);
  const KthKey kth = taken == n ? KthKey{0u, n} : segment.FindKth(taken);  // every key is at least 0
  segment.CountChosen(kth);
  nan = __syncthreads_or(nan);
  if (nan && !next_keys) {
    if (threadIdx.x == 0) s.count[t] = -1;
    return;
  }
  segment.ForChosen(kth, [&](int to, int at, unsigned key) {
    const auto number = s.round > 0 ? s.number[t * s.stride + begin + at] : static_cast<std::int32_t>(begin + at);
    numbers[to] = next_keys || s.candidates == Candidates::kBlocks ? number : static_cast<std::int32_t>(entries.Number(number));
    if (next_keys) next_keys[to] = key;
  });
  if (!next_keys && threadIdx.x == 0) s.count[t] = taken;
}

}  // namespace lockstep::kernels
