// Values that blocks of one launch hand to another of it: a word carries the value and that it is there, so neither side needs a fence. Words are zero before
// and after. The receiver waits, so its blocks come after the senders' in the grid: those have started by then and end without it.
#pragma once

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

using LaneWord = unsigned long long;  // low half: the value's bits; high half: 1 once it is there

#if defined(__CUDACC__)
__device__ inline void SendLane(LaneWord* word, float value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"((LaneWord{1} << 32) | __float_as_uint(value)) : "memory");
}

// Whether the value is there.
__device__ inline bool ReceiveLane(const LaneWord* word, float& value) {
  LaneWord bits;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(word) : "memory");
  value = __uint_as_float(static_cast<unsigned>(bits));
  return (bits >> 32) != 0;
}

__device__ inline void ClearLane(LaneWord* word) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(LaneWord{0}) : "memory"); }
#endif

}  // namespace lockstep::kernels
