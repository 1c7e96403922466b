// Kernels of large tiles that overlap: who waits for whom. Each launch starts when all blocks of the one before run or have ended, so what a block waits for
// is under way. Gate and up count the outputs of each tile, the preparation of down waits for a tile's and counts its blocks of rows, down waits for those.
#pragma once

#include "kernels/device/cuda_stream.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_cuda.h"

namespace lockstep::kernels {

inline constexpr int kPreparedRows = 4;  // of a block of the preparation
__host__ __device__ inline int PreparedBlocks(int rows) { return (rows + kPreparedRows - 1) / kPreparedRows; }

// Whether the call is gate and up of a relay, or down.
__device__ inline bool MakesInputs(const Exl3Relay& relay) { return relay.outputs && relay.awaited == 0; }
__device__ inline bool TakesInputs(const Exl3Relay& relay) { return relay.awaited > 0; }

// Where a kernel of large tiles begins. Without `waits`, the kernels before it have waited for what it reads, or it awaits counts.
__device__ inline void BeginLarge(bool waits) {
  if (waits) WaitForKernelsBefore();
  StartNextKernel();
}

// Where it ends: after the kernels before it. One block that waits is enough.
__device__ inline void EndLarge(bool waited) {
  if (!waited && blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z) WaitForKernelsBefore();
}

// By one thread, after a barrier of all that wrote what is counted.
__device__ inline void CountUp(std::int32_t* count) {
  __threadfence();
  atomicAdd(count, 1);
}

// Lets bulk copies that this thread starts later read what it has seen.
__device__ inline void ShowToCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// By one thread; a barrier must follow for the others, and ShowToCopies by another that starts bulk copies.
__device__ inline void AwaitCount(const std::int32_t* count, std::int32_t wanted) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  std::int32_t there = 0;
  while (true) {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(count) : "memory");
    if (there >= wanted) break;
    __nanosleep(100);
  }
  ShowToCopies();
#endif
}

}  // namespace lockstep::kernels
