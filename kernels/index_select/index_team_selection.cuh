// The choice among a row's keys by blocks that are on the device together. Contract: docs/numerics.md section 6, Selection.
#pragma once

#include <utility>

#include "kernels/index_select/index_selection.cuh"
#include "kernels/index_select/index_team_row.cuh"
#include "kernels/index_select/index_team_warp.cuh"

namespace lockstep::kernels {

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
    unsigned histogram[kTeamPasses][kTeamDigits];  // of the block's keys; then where its first key of a digit is among all blocks' keys of it
    unsigned bins[256], chosen_W[kTeamWarps];
    Threshold threshold;
    unsigned equal, nan;
    unsigned listed, counts, above_before, ties_before, close;
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
    s_.bins[threadIdx.x] = 0;
    if (threadIdx.x == 0) s_.listed = s_.counts = s_.above_before = s_.ties_before = s_.close = s_.nan = 0u;
  }

  // Makes keys of the scores that are in their place. `kept`: null, or where the row's scores go too.
  __device__ void TakeScores(float* kept) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < n_; i += kTeamThreads) {
      const float score = __uint_as_float(key_[i]);
      const unsigned key = EntryKeys::Key(score);
      key_[i] = key;
      atomicAdd(&s_.histogram[0][key >> shift_], 1u);
      if (kept) kept[begin_ + i] = score;
    }
  }

  // False: a key is a NaN's. All threads call it after a barrier.
  __device__ bool FindThreshold() {
    int pass = 0;
#pragma unroll 1
    while (true) {
      FindDigit(pass);
      if (s_.nan) return false;
      if (equal_ == kth_.ties || shift_ == 0 || equal_ <= kMaxTied) break;
      shift_ = max(shift_ - 11, 0);
      CountDigits(s_.histogram[++pass]);
      __syncthreads();
    }
    listed_ = equal_ > kth_.ties && shift_ > 0;
    Tell(s_.histogram[pass][(kth_.prefix >> shift_) % kTeamDigits]);
    Hear();
    if (listed_) FindAmongTied();
    return true;
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
  // Takes the next digit, the one from bit shift_ on, into the threshold.
  __device__ void FindDigit(int pass) {
    unsigned* own = s_.histogram[pass];
    unsigned position[kThreadDigits] = {};
    Add(own, pass, position);
    if (warp_ == 0) {
      const Threshold found = DigitOfAll(pass);
      if (lane_ == 0) s_.threshold = found;
    }
#pragma unroll
    for (int i = 0; i < kThreadDigits; ++i) own[OwnDigit(i)] = position[i];
    __syncthreads();
    kth_ = s_.threshold;
    equal_ = s_.equal;
  }

  // The block's counts of digits and of groups of them to those of all; what of a digit was there before in `position`.
  __device__ void Add(const unsigned* own, int pass, unsigned (&position)[kThreadDigits]) const {
    unsigned* to = row_.histogram[pass] + OwnDigit(0);
#pragma unroll
    for (int i = 0; i < kThreadDigits; ++i) {
      if (const unsigned count = own[OwnDigit(i)]; count > 0) position[i] = atomicAdd(to + 32 * i, count);
    }
    const auto* half = reinterpret_cast<const uint4*>(own + kDigitGroup / 2 * threadIdx.x);
    const uint4 low = half[0], high = half[1];
    unsigned sum = low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (threadIdx.x % 2 == 0 && sum > 0) atomicAdd(&row_.groups[pass][threadIdx.x / 2], sum);
    __syncwarp();  // the warp's counts have been read: positions may take their place
  }
  __device__ int OwnDigit(int i) const { return warp_ * 32 * kThreadDigits + 32 * i + lane_; }

  // By a warp: the threshold with the digit in which the last chosen key is. All have added when the sums are right.
  __device__ Threshold DigitOfAll(int pass) const {
    unsigned count[4];  // of groups, the lane's from the largest down
    do {
      unsigned four[4];
      ReceiveWords(&row_.groups[pass][kDigitGroups - 4 - 4 * lane_], four);
#pragma unroll
      for (int i = 0; i < 4; ++i) count[i] = four[3 - i];
    } while (SumOfWarp(count[0] + count[1] + count[2] + count[3]) != equal_);
    if (const unsigned top = __shfl_sync(0xffffffffu, count[0], 0); pass == 0 && top > 0) {  // kNanKey has the largest digit alone
      const unsigned nans = __shfl_sync(0xffffffffu, DigitCount(pass, kDigitGroups - 1, top), 0);
      if (lane_ == 0) s_.nan = nans;
    }
    const Found group = Found::In(count, kth_.ties);
    const unsigned digits[1] = {DigitCount(pass, kDigitGroups - 1 - group.index, group.count)};
    const Found digit = Found::In(digits, group.wanted);
    if (lane_ == 0) s_.equal = digit.count;
    return {kth_.prefix | (kTeamDigits - 1 - kDigitGroup * group.index - digit.index) << shift_, ~0u << shift_, digit.wanted};
  }
  // By a warp: how many of the `all` keys of a group have its lane-th digit from the top.
  __device__ unsigned DigitCount(int pass, unsigned group, unsigned all) const {
    unsigned count;
    do {
      count = lane_ < kDigitGroup ? ReceiveWord(&row_.histogram[pass][(group + 1) * kDigitGroup - 1 - lane_]) : 0u;
    } while (SumOfWarp(count) != all);
    return count;
  }

  // Counts the digits of the block's keys at the threshold.
  __device__ void CountDigits(unsigned* histogram) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < n_; i += kTeamThreads) {
      if (kth_.Has(key_[i])) atomicAdd(&histogram[(key_[i] & ~kth_.mask) >> shift_], 1u);
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
    counts = SumOfWarp(counts);
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

  // Calls body(entry) for the thread's entries of the list.
  template <class Body>
  __device__ void ForTied(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kTiedItems; ++i) {
      if (item_[i] == 0) break;
      body(TiedEntry::Of(item_[i]));
    }
  }

  // The threshold from the list: eight more bits, then by rank among those that are equal in these too.
  __device__ void FindAmongTied() {
    const int shift = shift_ - 8;
    ForTied([&](const TiedEntry& entry) { atomicAdd(&s_.bins[entry.key >> shift & 255u], 1u); });
    __syncthreads();
    unsigned count[8];  // the lane's from the largest down
#pragma unroll
    for (int i = 0; i < 8; ++i) count[i] = s_.bins[255 - 8 * lane_ - i];
    const Found bin = Found::In(count, kth_.ties);
    kth_ = {kth_.prefix | (255u - bin.index) << shift, ~0u << shift, bin.wanted};
    if (bin.wanted == bin.count) return;
    auto* close = reinterpret_cast<TiedEntry*>(s_.histogram);  // all have used it: they have met since
    ForTied([&](const TiedEntry& entry) {
      if (kth_.Has(entry.key)) close[atomicAdd(&s_.close, 1u)] = entry;
    });
    __syncthreads();
    ForTied([&](const TiedEntry& entry) {
      if (!kth_.Has(entry.key)) return;
      unsigned larger = 0, before = 0;
#pragma unroll 1
      for (unsigned i = 0; i < bin.count; ++i) larger += close[i].key > entry.key, before += close[i].key == entry.key && close[i].number < entry.number;
      if (larger + before == bin.wanted - 1) s_.threshold = {entry.key, ~0u, bin.wanted - larger};
    });
    __syncthreads();
    kth_ = s_.threshold;
  }

  // What is chosen, and equal to the threshold, before the block and of each of its warps.
  __device__ void CountBefore(int first, int end) const {
    unsigned above = before_.above, ties = listed_ ? 0u : before_.at, own = 0;
    ForTied([&](const TiedEntry& entry) {
      if (static_cast<int>(entry.number) < begin_) above += kth_.Below(entry.key), ties += kth_.Has(entry.key);
    });
#pragma unroll 1
    for (int i = first + lane_; i < end; i += 32) own += (kth_.Below(key_[i]) ? 1u << 16 : 0u) + (kth_.Has(key_[i]) ? 1u : 0u);
    above = SumOfWarp(above), ties = SumOfWarp(ties), own = SumOfWarp(own);
    if (lane_ != 0) return;
    if (above > 0) atomicAdd(&s_.above_before, above);
    if (ties > 0) atomicAdd(&s_.ties_before, ties);
    s_.chosen_W[warp_] = own;
  }

  Shared& s_;
  TeamRow& row_;
  unsigned* const key_;
  const int begin_, n_, blocks_, warp_, lane_;
  int shift_ = 21;
  Threshold kth_;
  unsigned equal_;  // keys of the row that have the threshold's bits
  bool listed_ = false;
  unsigned long long item_[kTiedItems];  // the thread's of the list; zero past its end
  BlockCounts before_;                   // of a block before this one
};

}  // namespace lockstep::kernels
