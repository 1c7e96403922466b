// Sums over the threads of a block of 1024, in whole numbers: exact in any order.
#pragma once

#include "kernels/device/warp_reduce.cuh"

namespace lockstep::kernels {

#if defined(__CUDACC__)
// What the threads before this one have, and what all have.
template <class Value>
struct BlockSums {
  Value before, all;

  // `warp`: 32 words of shared memory that others may use again after the next barrier.
  static __device__ BlockSums Of(Value value, Value* warp) {
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32;
    const Value upto = RunningSumOfWarp(value);
    if (lane == 31) warp[own] = upto;
    __syncthreads();
    const Value warps = RunningSumOfWarp(warp[lane]), earlier = __shfl_sync(kAllLanes, warps, (own + 31) % 32);
    return {(own > 0 ? earlier : Value{0}) + upto - value, __shfl_sync(kAllLanes, warps, 31)};
  }
};
#endif

}  // namespace lockstep::kernels
