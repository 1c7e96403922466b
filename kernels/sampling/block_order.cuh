// Maxima and the order of values that the threads have, one each.
#pragma once

#include <cstdint>

#include "kernels/device/warp_reduce.cuh"

namespace lockstep::kernels {

__device__ inline unsigned long long WarpMax(unsigned long long value) {
  for (int stride = 16; stride > 0; stride /= 2) value = max(value, __shfl_xor_sync(kAllLanes, value, stride));
  return value;
}

// The i-th largest key to thread i < count of 1024 (bitonic). Keys are above 0 and differ; the threads from `count` on have 0. `memory`: a word a thread,
// which nobody else writes or still reads.
__device__ inline std::uint64_t SortDescending(std::uint64_t key, int count, std::uint64_t* memory) {
  const int i = static_cast<int>(threadIdx.x);
  int size = 32;
  while (size < count) size *= 2;
  for (int run = 2; run <= size; run *= 2) {
    for (int stride = run / 2; stride > 0; stride /= 2) {
      unsigned long long other;
      if (stride >= 32) {
        __syncthreads();
        memory[i] = key;
        __syncthreads();
        other = memory[i ^ stride];
      } else {
        other = __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(key), stride);
      }
      const bool larger = ((i & stride) == 0) == ((i & run) == 0);
      if (larger == (other > key)) key = other;
    }
  }
  return key;
}

}  // namespace lockstep::kernels
