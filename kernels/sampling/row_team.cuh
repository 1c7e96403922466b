// The blocks that share a row: between meetings every block leaves words for the others and adds to sums of all; after one it reads what all have left.
#pragma once

#include <cstdint>

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

inline constexpr int kMaxTeam = 32;                  // blocks: a lane of a warp each
inline constexpr int kTeamWords = 1 + 1024;          // that a block can leave between two meetings
inline constexpr int kTeamSums = 2048, kSumSets = 3;

// How many blocks of a row have come to a meeting, over all its meetings, and how many are done. Zero before and after a launch.
struct TeamCounters {
  std::uint32_t arrived, done;
};

// Of a launch whose block (x, y) is block x of row y's team. Words have two sets in turn, because a block may be a meeting ahead of one that still reads;
// sums have three, because a set must also become zero again between two uses.
struct TeamMemory {
  unsigned long long* words;  // [rows][blocks][2][kTeamWords]
  unsigned long long* sums;   // [rows][kSumSets][kTeamSums]
  TeamCounters* counters;     // [rows]

  static TeamMemory In(CudaStream& stream, int slot, std::int64_t rows, int blocks) {
    const auto sums = static_cast<std::size_t>(rows) * kSumSets * kTeamSums, words = static_cast<std::size_t>(rows * blocks) * 2 * kTeamWords;
    auto* memory = reinterpret_cast<unsigned long long*>(stream.Scratch(slot, (sums + words) * sizeof(unsigned long long)));
    return {memory + sums, memory, reinterpret_cast<TeamCounters*>(stream.ZeroedScratch(static_cast<std::size_t>(rows) * sizeof(TeamCounters)))};
  }
};

#if defined(__CUDACC__)

// Called by all threads of all blocks of a team, which must be on the device at once: those of earlier kernels end without them, and later ones start
// after they have. The first meeting comes before the first sums.
class RowTeam {
 public:
  explicit __device__ RowTeam(const TeamMemory& memory)
      : words_(memory.words + static_cast<std::int64_t>(blockIdx.y) * blocks() * 2 * kTeamWords),
        sums_(memory.sums + static_cast<std::int64_t>(blockIdx.y) * kSumSets * kTeamSums),
        counters_(memory.counters + blockIdx.y) {
    ClearShare(0);
    ClearShare(1);
  }

  __device__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ int rank() const { return static_cast<int>(blockIdx.x); }

  // Word i < kTeamWords of this block, for after the next meeting.
  __device__ void Leave(int i, unsigned long long word) { words_[At(rank(), i, meetings_)] = word; }
  // The barriers make one thread's order the block's.
  __device__ void Meet() {
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto expected = static_cast<std::uint32_t>((meetings_ + 1) * blocks());
      asm volatile("red.add.release.gpu.global.u32 [%0], 1;" ::"l"(&counters_->arrived) : "memory");
      std::uint32_t arrived;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(&counters_->arrived) : "memory");
      } while (arrived < expected);
    }
    __syncthreads();
    ++meetings_;
  }
  // What a block left for the last meeting.
  __device__ unsigned long long Word(int block, int i) const { return __ldcg(words_ + At(block, i, meetings_ - 1)); }

  // Adds `value(i)` of this block to sum i < kTeamSums of the team, and meets; then Sums has two of them for every thread of kTeamSums / 2.
  template <class Value>
  __device__ void AddAndMeet(const Value& value) {
    unsigned long long* set = sums_ + additions_ % kSumSets * kTeamSums;
    for (int i = threadIdx.x; i < kTeamSums; i += static_cast<int>(blockDim.x)) {
      if (const unsigned long long own = value(i); own > 0) atomicAdd(set + i, own);
    }
    Meet();
    ClearShare(additions_ + 2);  // the set before this one: all have read it
    ++additions_;
  }
  __device__ ulonglong2 Sums() const {
    return __ldcg(reinterpret_cast<const ulonglong2*>(sums_ + (additions_ - 1) % kSumSets * kTeamSums) + threadIdx.x);
  }

  // After the last meeting: the last block leaves the counters as it found them.
  __device__ void Disperse() {
    if (threadIdx.x != 0) return;
    if (atomicAdd(&counters_->done, 1u) == gridDim.x - 1) *counters_ = {0, 0};
  }

 private:
  __device__ void ClearShare(int addition) {
    unsigned long long* set = sums_ + addition % kSumSets * kTeamSums;
    for (int i = rank() * static_cast<int>(blockDim.x) + threadIdx.x; i < kTeamSums; i += blocks() * static_cast<int>(blockDim.x)) set[i] = 0;
  }
  __device__ std::int64_t At(int block, int i, int meeting) const { return (static_cast<std::int64_t>(block) * 2 + meeting % 2) * kTeamWords + i; }

  unsigned long long *words_, *sums_;
  TeamCounters* counters_;
  int meetings_ = 0, additions_ = 0;
};

#endif

}  // namespace lockstep::kernels
