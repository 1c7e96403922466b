// The place of the wanted-th of many, by a warp.
#pragma once

#include "kernels/device/warp_reduce.cuh"

namespace lockstep::kernels {

// Where the wanted-th of many lies: one of a lane's counts, how many of it are wanted, and how many it has.
struct Found {
  unsigned index, wanted, count;

  // In the order of the lanes, and of a lane's counts; the same for all lanes.
  template <int kCounts>
  __device__ static Found In(const unsigned (&count)[kCounts], unsigned wanted) {
    const int lane = threadIdx.x & 31;
    unsigned own = 0;
#pragma unroll
    for (int i = 0; i < kCounts; ++i) own += count[i];
    const unsigned to_here = RunningSumOfWarp(own);
    const int at = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, to_here >= wanted))) - 1;
    Found found{0u, wanted - (to_here - own), count[0]};
#pragma unroll
    for (int next = 1; next < kCounts; ++next) {
      if (found.index == next - 1 && found.wanted > found.count) found = {static_cast<unsigned>(next), found.wanted - found.count, count[next]};
    }
    found.index += kCounts * lane;
    return {__shfl_sync(0xffffffffu, found.index, at), __shfl_sync(0xffffffffu, found.wanted, at), __shfl_sync(0xffffffffu, found.count, at)};
  }
};

}  // namespace lockstep::kernels
