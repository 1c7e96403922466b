// Rows of many entries, few of them: blocks that are on the device together score a stretch of a row each, keep its order keys, and choose the row's best in
// the same launch. Contract: docs/numerics.md section 6, Index score and Selection.
#pragma once

#include <utility>

#include "kernels/index_select/index_scores.cuh"
#include "kernels/index_select/index_selection.cuh"
#include "kernels/index_select/index_team_row.cuh"

namespace lockstep::kernels {

// Entries of each of a row's blocks, but for the last.
__host__ __device__ inline std::int64_t TeamStretch(std::int64_t entries, std::int64_t blocks) {
  constexpr std::int64_t kLeast = 8 * kTeamWarps;  // a turn of the warps
  const std::int64_t even = (entries + blocks - 1) / blocks;
  return even < kLeast ? kLeast : (even + 7) / 8 * 8;
}

__device__ inline unsigned WarpSum(unsigned x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, x);
#else
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
#endif
}

// What is known of the worst key that is chosen: its bits in `mask`, and how many of the keys with these bits are chosen.
struct Threshold {
  unsigned prefix, mask, ties;

  __device__ bool Below(unsigned key) const { return (key & mask) > prefix; }  // the key is surely chosen
  __device__ bool Has(unsigned key) const { return (key & mask) == prefix; }
};

// The choice among a row's keys by all threads of its blocks. Every block finds the same threshold: first from digit counts of all blocks, then from a list of
// the keys that are still equal to it.
class TeamSelection {
 public:
  struct Shared {
    unsigned histogram[kTeamPasses][kTeamDigits];
    unsigned digits_W[2][kTeamWarps], chosen_W[kTeamWarps];
    unsigned prefix, ties, equal, nan;
    unsigned listed, counts, above_before, ties_before;
  };

  // `key`: room for a stretch; `all`: the row's entries.
  __device__ TeamSelection(Shared& shared, TeamRow& row, unsigned* key, std::int64_t stretch, std::int64_t all, int top_k)
      : s_(shared), row_(row), key_(key), begin_(static_cast<int>(blockIdx.x * stretch)), n_(static_cast<int>(min(stretch, all - begin_))),
        blocks_(static_cast<int>((all + stretch - 1) / stretch)), warp_(threadIdx.x / 32), lane_(threadIdx.x & 31), kth_{0u, 0u, static_cast<unsigned>(min(all, std::int64_t{top_k}))},
        equal_(static_cast<unsigned>(all)) {}

  __device__ void Clear() const {
    auto* words = reinterpret_cast<uint4*>(s_.histogram);
#pragma unroll 1
    for (int i = threadIdx.x; i < kTeamPasses * kTeamDigits / 4; i += kTeamThreads) words[i] = make_uint4(0u, 0u, 0u, 0u);
    if (threadIdx.x == 0) s_.listed = s_.counts = s_.above_before = s_.ties_before = 0u;
  }

  // Where the score of entry i goes before TakeScores, after which keys are there.
  __device__ unsigned* Place(std::int64_t i) const { return key_ + (static_cast<int>(i) - begin_); }
  // `kept`: null, or where the row's scores go too.
  __device__ void TakeScores(float* kept) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < n_; i += kTeamThreads) {
      const float score = __uint_as_float(key_[i]);
      const unsigned key = EntryKeys::Key(score);
      key_[i] = key;
      atomicAdd(&s_.histogram[0][key >> 21], 1u);
      if (kept) kept[begin_ + i] = score;
    }
  }

  // False: a key is a NaN's. All threads call it after a barrier.
  __device__ bool FindThreshold() {
    bool told = false;
#pragma unroll 1
    for (int pass = 0, shift = 21;; ++pass) {
      FindDigit(pass, shift, !told);
      if (s_.nan) return false;
      const bool found = equal_ == kth_.ties || shift == 0;
      if (!told && (found || equal_ <= kMaxTied)) {
        listed_ = !found;
        Tell(s_.histogram[pass][(kth_.prefix >> shift) % kTeamDigits]);
        Hear();
        told = true;
      }
      if (found) return true;
      shift = max(shift - 11, 0);
      Count(s_.histogram[pass + 1], shift, told);
      __syncthreads();
    }
  }

  // Calls write(place, i) for the chosen ones of the block's entries, i counting from the first.
  template <class Write>
  __device__ void ForChosen(const Write& write) const {
    const int share = (n_ + kTeamThreads - 1) / kTeamThreads * 32, first = warp_ * share, end = min(first + share, n_);  // a warp's are neighbours
    CountBefore(first, end);
    __syncthreads();
    unsigned before = 0;
#pragma unroll
    for (int w = 0; w < kTeamWarps; ++w) before += w < warp_ ? s_.chosen_W[w] : 0u;
    unsigned above = s_.above_before + (before >> 16), ties = s_.ties_before + (before & 0xffffu);
    const unsigned below_lane = (1u << lane_) - 1u;
    unsigned place = above + min(ties, kth_.ties);
#pragma unroll 1
    for (int i = first + lane_; i - lane_ < end; i += 32) {
      const bool inside = i < end, tie = inside && kth_.Has(key_[i]);
      const unsigned tied = __ballot_sync(0xffffffffu, tie);
      const bool take = inside && (kth_.Below(key_[i]) || (tie && ties + __popc(tied & below_lane) < kth_.ties));
      const unsigned takers = __ballot_sync(0xffffffffu, take);
      if (take) write(static_cast<int>(place) + __popc(takers & below_lane), i);
      place += __popc(takers), ties += __popc(tied);
    }
  }

  __device__ int begin() const { return begin_; }
  __device__ int end() const { return begin_ + n_; }

 private:
  // Takes the next digit into the threshold: from counts of all blocks, `together`, or of the list.
  __device__ void FindDigit(int pass, int shift, bool together) {
    unsigned* own = s_.histogram[pass];
    unsigned position[kThreadDigits] = {};  // of the block's first key of a digit among all blocks'
    if (together) Add(own, pass, position);
    const int top = kTeamDigits - 1 - kThreadDigits * static_cast<int>(threadIdx.x);  // this thread's digits: top and those below
    unsigned count[kThreadDigits], sum, larger;
#pragma unroll 1
    for (int turn = 0;; ++turn) {
      const unsigned* from = together ? row_.histogram[pass] + TeamRow::Place(top - 7) : own + top - 7;
      const uint4 low = together ? ReceiveWords<0>(from) : reinterpret_cast<const uint4*>(from)[0], high = together ? ReceiveWords<4>(from) : reinterpret_cast<const uint4*>(from)[1];
      count[0] = high.w, count[1] = high.z, count[2] = high.y, count[3] = high.x, count[4] = low.w, count[5] = low.z, count[6] = low.y, count[7] = low.x;
      sum = high.w + high.z + high.y + high.x + low.w + low.z + low.y + low.x;
      unsigned total;
      larger = BlockSumBefore(sum, s_.digits_W[turn % 2], &total);
      if (total == equal_) break;  // all are there
    }
    if (together) {
#pragma unroll
      for (int i = 0; i < kThreadDigits; ++i) own[OwnDigit(i)] = position[i];
    }
    if (larger < kth_.ties && larger + sum >= kth_.ties) {
      unsigned left = kth_.ties - larger, equal = count[0];
      int i = 0;
#pragma unroll
      for (int next = 1; next < kThreadDigits; ++next) {
        if (i == next - 1 && left > equal) left -= equal, equal = count[next], i = next;
      }
      s_.prefix = kth_.prefix | static_cast<unsigned>(top - i) << shift, s_.ties = left, s_.equal = equal;
    }
    if (threadIdx.x == 0 && pass == 0) s_.nan = count[0];  // of kNanKey alone
    __syncthreads();
    kth_ = {s_.prefix, ~0u << shift, s_.ties};
    equal_ = s_.equal;
  }

  // The block's digit counts to those of all.
  __device__ void Add(const unsigned* own, int pass, unsigned (&position)[kThreadDigits]) const {
    unsigned* to = row_.histogram[pass] + TeamRow::Place(OwnDigit(0));
#pragma unroll
    for (int i = 0; i < kThreadDigits; ++i) {
      if (const unsigned count = own[OwnDigit(i)]; count > 0) position[i] = atomicAdd(to + TeamRow::PlaceOffset(i), count);
    }
  }
  __device__ int OwnDigit(int i) const { return warp_ * 32 * kThreadDigits + 32 * i + lane_; }

  // The sum of x over the threads before this one; the sum of all in `total`. Whoever uses word_W next meets a barrier first.
  __device__ unsigned BlockSumBefore(unsigned x, unsigned (&word_W)[kTeamWarps], unsigned* total) const {
    unsigned to_here = x;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const unsigned other = __shfl_up_sync(0xffffffffu, to_here, lanes);
      if (lane_ >= lanes) to_here += other;
    }
    if (lane_ == 31) word_W[warp_] = to_here;
    __syncthreads();
    unsigned before = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kTeamWarps; ++w) before += w < warp_ ? word_W[w] : 0u, sum += word_W[w];
    *total = sum;
    return before + to_here - x;
  }

  // Counts the digits of the keys at the threshold: of the list or of the block's.
  __device__ void Count(unsigned* histogram, int shift, bool told) const {
    const auto count = [&](unsigned key) {
      if (kth_.Has(key)) atomicAdd(&histogram[(key & ~kth_.mask) >> shift], 1u);
    };
    if (!told) {
#pragma unroll 1
      for (int i = threadIdx.x; i < n_; i += kTeamThreads) count(key_[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kTiedItems; ++i) {
      if (item_[i] == 0) break;
      count(TiedEntry::Of(item_[i]).key);
    }
  }

  // Leaves the block's counts for the others and, where there is a list, its keys at the threshold from `position` on.
  __device__ void Tell(unsigned position) const {
    unsigned counts = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < n_; i += kTeamThreads) {
      const unsigned key = key_[i];
      const bool at = kth_.Has(key);
      if (at && listed_) SendWord(&row_.tied[position + atomicAdd(&s_.listed, 1u)], TiedEntry{key, static_cast<unsigned>(begin_ + i)}.Word());
      counts += (at ? 1u << 16 : 0u) + (kth_.Below(key) ? 1u : 0u);
    }
    counts = WarpSum(counts);
    if (lane_ == 0) atomicAdd(&s_.counts, counts);
    __syncthreads();
    if (threadIdx.x == 0) SendWord(&row_.counts[blockIdx.x], BlockCounts{s_.counts & 0xffffu, s_.counts >> 16}.Word());
  }

  // Waits for the counts of all blocks, and the list.
  __device__ void Hear() {
    const bool block = static_cast<int>(threadIdx.x) < blocks_;
    const int n = listed_ ? static_cast<int>(equal_) - static_cast<int>(threadIdx.x) : 0;
    unsigned word = 0;
    bool there;
#pragma unroll
    for (int i = 0; i < kTiedItems; ++i) item_[i] = 0;
    do {
      if (block) word = ReceiveWord(&row_.counts[threadIdx.x]);
      [&]<int... i>(std::integer_sequence<int, i...>) {
        ((i * kTeamThreads < n && (item_[i] = ReceiveWord<i * kTeamThreads>(&row_.tied[threadIdx.x]), true)) && ...);
      }(std::make_integer_sequence<int, kTiedItems>());
      there = !block || word != 0;
#pragma unroll
      for (int i = 0; i < kTiedItems; ++i) {
        if (i * kTeamThreads >= n) break;
        there = there && item_[i] != 0;
      }
    } while (!there);
    before_ = threadIdx.x < blockIdx.x ? BlockCounts::Of(word) : BlockCounts{0u, 0u};
  }

  // What is chosen, and equal to the threshold, before the block and of each of its warps.
  __device__ void CountBefore(int first, int end) const {
    unsigned above = before_.above, ties = listed_ ? 0u : before_.at, own = 0;
#pragma unroll
    for (int i = 0; i < kTiedItems; ++i) {
      if (item_[i] == 0) break;
      const TiedEntry entry = TiedEntry::Of(item_[i]);
      if (static_cast<int>(entry.number) < begin_) above += kth_.Below(entry.key), ties += kth_.Has(entry.key);
    }
#pragma unroll 1
    for (int i = first + lane_; i < end; i += 32) own += (kth_.Below(key_[i]) ? 1u << 16 : 0u) + (kth_.Has(key_[i]) ? 1u : 0u);
    above = WarpSum(above), ties = WarpSum(ties), own = WarpSum(own);
    if (lane_ != 0) return;
    if (above > 0) atomicAdd(&s_.above_before, above);
    if (ties > 0) atomicAdd(&s_.ties_before, ties);
    s_.chosen_W[warp_] = own;
  }

  Shared& s_;
  TeamRow& row_;
  unsigned* const key_;
  const int begin_, n_, blocks_, warp_, lane_;
  Threshold kth_;
  unsigned equal_;  // keys of the row that have the threshold's bits
  bool listed_ = false;
  unsigned long long item_[kTiedItems];  // the thread's of the list; zero past its end
  BlockCounts before_;                   // of a block before this one
};

// Block: a stretch of entries (x) of a row (y). Blocks wait for one another: there is at most one for each multiprocessor.
template <int kBlocks, int kHeadTiles>
__global__ void __launch_bounds__(kTeamThreads, 1) TeamSelectKernel(const __grid_constant__ IndexSelectArgs a, const IndexQuery<kBlocks, kHeadTiles>* queries, TeamRow* team) {
  StartNextKernel();
  extern __shared__ __align__(16) unsigned key[];
  __shared__ __align__(16) TeamSelection::Shared shared;
  const std::int64_t t = blockIdx.y;
  const IndexEntries entries(a, t);
  const std::int64_t stretch = TeamStretch(entries.count, gridDim.x);
  if (blockIdx.x * stretch >= entries.count) {
    WaitForKernelsBefore();
    if (blockIdx.x == 0 && threadIdx.x == 0) a.count_T[t] = 0;
    return;
  }
  TeamSelection selection(shared, team[t], key, stretch, entries.count, a.top_k);
  selection.Clear();
  __syncthreads();
  const int begin = selection.begin(), first = begin + static_cast<int>(threadIdx.x) / 32 * 8;
  ScoreInTurn(a, entries, queries[t], first, 8 * kTeamWarps, selection.end(), [&](float2 score, std::int64_t from) {
    const int lane = threadIdx.x & 31;  // a stretch has room for all eight
    if (lane < 4) *reinterpret_cast<float2*>(selection.Place(from + 2 * lane)) = score;
  });
  __syncthreads();
  selection.TakeScores(a.scores_out && !a.candidates_in ? a.scores_out + t * a.scores_stride : nullptr);
  __syncthreads();
  const bool numbers = selection.FindThreshold();
  if (numbers) selection.ForChosen([&](int place, int i) { a.selected_TK[t * a.top_k + place] = static_cast<std::int32_t>(entries.Number(begin + i)); });
  if (blockIdx.x == 0 && threadIdx.x == 0) a.count_T[t] = numbers ? static_cast<std::int32_t>(min(entries.count, std::int64_t{a.top_k})) : -1;
}

}  // namespace lockstep::kernels
