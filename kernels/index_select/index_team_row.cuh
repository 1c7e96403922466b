// What the blocks that share a row's entries leave for one another within a launch. Every word says itself that it is there, so no fence and no counter of
// arrivals stands between them: digit counts by their sum, which is known, other words by being not zero.
#pragma once

#include "kernels/device/lane_words.cuh"

namespace lockstep::kernels {

inline constexpr int kTeamThreads = 256, kTeamWarps = kTeamThreads / 32, kMaxTeam = kTeamThreads;  // of a block; blocks
inline constexpr int kTeamDigits = 2048, kTeamPasses = 3, kThreadDigits = kTeamDigits / kTeamThreads;
inline constexpr int kDigitGroup = 16, kDigitGroups = kTeamDigits / kDigitGroup;  // neighbouring digits
inline constexpr int kTiedItems = 4, kMaxTied = kTeamThreads * kTiedItems;
inline constexpr std::int64_t kMaxStretch = 16384;  // entries of a block

// Zero when the blocks start: the kernel that prepares the query makes it so.
struct alignas(16) TeamRow {
  unsigned histogram[kTeamPasses][kTeamDigits];  // of all blocks' keys
  unsigned groups[kTeamPasses][kDigitGroups];    // the same of groups of digits: who waits reads little
  unsigned long long tied[kMaxTied];             // keys at the threshold, in any order
  unsigned counts[kMaxTeam];                     // of each block

#if defined(__CUDACC__)
  // By `of` threads, of which this is number `rank`.
  __device__ void ClearShare(int rank, int of) {
    auto* words = reinterpret_cast<uint4*>(this);
#pragma unroll 1
    for (int i = rank; i < static_cast<int>(sizeof(TeamRow) / sizeof(uint4)); i += of) words[i] = make_uint4(0u, 0u, 0u, 0u);
  }
#endif
};

#if defined(__CUDACC__)
// An entry at the threshold.
struct TiedEntry {
  unsigned key;
  unsigned number;

  __device__ static TiedEntry Of(unsigned long long word) { return {static_cast<unsigned>(word), static_cast<unsigned>(word >> 32) & 0x7fffffffu}; }
  __device__ unsigned long long Word() const { return (1ull << 63) | static_cast<unsigned long long>(number) << 32 | key; }
};

// How many keys of a block are above the threshold, and at it.
struct BlockCounts {
  unsigned above, at;
  static_assert(kMaxStretch < 1 << 15);

  __device__ static BlockCounts Of(unsigned word) { return {word & 0x7fffu, word >> 15 & 0x7fffu}; }
  __device__ unsigned Word() const { return 1u << 31 | at << 15 | above; }
};
#endif

}  // namespace lockstep::kernels
