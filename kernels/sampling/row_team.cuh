// The blocks that share a row: in each step every block leaves words for the others, meets them, and reads what all have left.
#pragma once

#include <cstdint>

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

inline constexpr int kTeamWords = 2048;  // that a block can leave in a step

// How many blocks of a row have come to a meeting, over all its steps, and how many are done. Zero before and after a launch.
struct TeamCounters {
  std::uint32_t arrived, done;
};

// Of a launch whose block (x, y) is block x of row y's team. Two sets of words in turn: a block may be a step ahead of one that still reads.
struct TeamMemory {
  unsigned long long* words;  // [rows][blocks][2][kTeamWords]
  TeamCounters* counters;     // [rows]

  static TeamMemory In(CudaStream& stream, int slot, std::int64_t rows, int blocks) {
    const auto words = static_cast<std::size_t>(rows * blocks * 2 * kTeamWords);
    return {reinterpret_cast<unsigned long long*>(stream.Scratch(slot, words * sizeof(unsigned long long))),
            reinterpret_cast<TeamCounters*>(stream.ZeroedScratch(static_cast<std::size_t>(rows) * sizeof(TeamCounters)))};
  }
};

#if defined(__CUDACC__)

// All blocks of a team must be on the device at once: those of earlier kernels end without them, and later ones start after they have.
class RowTeam {
 public:
  explicit __device__ RowTeam(const TeamMemory& memory)
      : words_(memory.words + static_cast<std::int64_t>(blockIdx.y) * blocks() * 2 * kTeamWords), counters_(memory.counters + blockIdx.y) {}

  __device__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ int rank() const { return static_cast<int>(blockIdx.x); }

  // This block's words of the step: word(i), i < count <= kTeamWords. By all threads; what word reads is ready.
  template <class Value>
  __device__ void Leave(int count, const Value& word) {
    for (int i = threadIdx.x; i < count; i += static_cast<int>(blockDim.x)) words_[At(rank(), i)] = word(i);
  }

  // Ends the step: all have left their words. The barriers make one thread's order the block's.
  __device__ void Meet() {
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto expected = static_cast<std::uint32_t>((step_ + 1) * blocks());
      asm volatile("red.add.release.gpu.global.u32 [%0], 1;" ::"l"(&counters_->arrived) : "memory");
      std::uint32_t arrived;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(&counters_->arrived) : "memory");
      } while (arrived < expected);
    }
    __syncthreads();
    ++step_;
  }

  // What a block, or all together, left in the step that has ended.
  __device__ unsigned long long Word(int block, int i) const { return __ldcg(words_ + At(block, i, step_ - 1)); }
  __device__ unsigned long long Sum(int i) const {
    unsigned long long sum = 0;
#pragma unroll 4
    for (int b = 0; b < blocks(); ++b) sum += Word(b, i);
    return sum;
  }

  // After the last step, by all threads: the last block leaves the counters as it found them.
  __device__ void Disperse() {
    if (threadIdx.x != 0) return;
    if (atomicAdd(&counters_->done, 1u) == gridDim.x - 1) *counters_ = {0, 0};
  }

 private:
  __device__ std::int64_t At(int block, int i, int step) const { return (static_cast<std::int64_t>(block) * 2 + step % 2) * kTeamWords + i; }
  __device__ std::int64_t At(int block, int i) const { return At(block, i, step_); }

  unsigned long long* words_;
  TeamCounters* counters_;
  int step_ = 0;
};

#endif

}  // namespace lockstep::kernels
