// Sums, extremes and running sums over the lanes of a warp, in whole numbers: exact in any order.
#pragma once

#include <cuda_runtime.h>

namespace lockstep::kernels {

inline constexpr unsigned kAllLanes = 0xffffffffu;

#if defined(__CUDACC__)
// The sum in every lane; int or unsigned.
template <class Int>
__device__ inline Int SumOfWarp(Int x) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, x);
#else
  for (int stride = 16; stride > 0; stride /= 2) x += __shfl_xor_sync(kAllLanes, x, stride);
  return x;
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ inline unsigned MaxOfWarp(unsigned x) { return __reduce_max_sync(kAllLanes, x); }
__device__ inline unsigned MinOfWarp(unsigned x) { return __reduce_min_sync(kAllLanes, x); }
#else
__device__ inline unsigned MaxOfWarp(unsigned x) {
  for (int stride = 16; stride > 0; stride /= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, stride));
  return x;
}
__device__ inline unsigned MinOfWarp(unsigned x) { return ~MaxOfWarp(~x); }
#endif

// The sum of the lanes up to this one.
template <class Value>
__device__ Value RunningSumOfWarp(Value value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int stride = 1; stride < 32; stride *= 2) {
    const Value below = __shfl_up_sync(kAllLanes, value, stride);
    if (lane >= stride) value += below;
  }
  return value;
}
#endif

}  // namespace lockstep::kernels
