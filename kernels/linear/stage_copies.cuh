// The row codes of a ring's stages on their way to shared memory: a bulk copy a stage where the architecture has a copy engine for it, so that the
// tensor cores read what no thread wrote and nobody waits for a proxy fence; 16-byte copies of all threads elsewhere.
#pragma once

#include "kernels/device/mbarrier_sm90.cuh"
#include "kernels/linear/async_copy.cuh"

namespace lockstep::kernels {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kStages, int kBytes, int kThreads>
class StageCopies {
 public:
  static constexpr int kBarrierBytes = 8 * kStages;

  // `barriers`: kBarrierBytes of shared memory. A block barrier must follow.
  __device__ explicit StageCopies(std::byte* barriers) : barriers_(SharedAddress(barriers)) {
    if (threadIdx.x != 0) return;
    for (int stage = 0; stage < kStages; ++stage) InitBarrier(barriers_ + 8 * stage, 1);
    ShowBarriers();
  }

  // The next stage in turn. All threads call; the stage must be free.
  __device__ void Start(std::byte* to, const std::byte* from) {
    if (threadIdx.x == 0) {
      const std::uint32_t barrier = barriers_ + 8 * start_;
      ArriveExpecting(barrier, kBytes);
      CopyBulk(SharedAddress(to), from, kBytes, barrier);
    }
    start_ = start_ + 1 == kStages ? 0 : start_ + 1;
  }

  // Until the next stage in turn is there.
  __device__ void Wait() {
    WaitForPhase(barriers_ + 8 * wait_, parity_);
    wait_ = wait_ + 1 == kStages ? 0 : wait_ + 1;
    if (wait_ == 0) parity_ ^= 1u;
  }

 private:
  std::uint32_t barriers_, parity_ = 0;
  int start_ = 0, wait_ = 0;
};

#else

// The copies join the thread's group of asynchronous copies; its wait and a block barrier end them.
template <int kStages, int kBytes, int kThreads>
class StageCopies {
 public:
  static constexpr int kBarrierBytes = 8 * kStages;

  __device__ explicit StageCopies(std::byte*) {}
  __device__ void Start(std::byte* to, const std::byte* from) {
    for (int at = static_cast<int>(threadIdx.x) * 16; at < kBytes; at += kThreads * 16) CopyAsync16(to + at, from + at);
  }
  __device__ void Wait() {}
};

#endif

}  // namespace lockstep::kernels
