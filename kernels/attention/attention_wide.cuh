// Attention of many rows on sm_90a, heads of 512 channels, as a pipeline of four warpgroups: one unpacks keys into two buffers of 64 slots, one multiplies
// queries by them and makes the softmax's weights, two weigh 256 channels each. Blocks go from row to row. Contract: docs/numerics.md section 6, Attention.
#pragma once

#include "kernels/attention/attention_wide_keys.cuh"
#include "kernels/attention/attention_wide_values.cuh"
#include "kernels/attention/attention_wide_weights.cuh"

namespace lockstep::kernels {

// All registers of a multiprocessor among the four.
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void LeaveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ inline void RunWideAttention(const AttentionArgs& a, float scale, std::byte* memory) {
  const int group = threadIdx.x / WideLayout::kGroup;
  if (group == 0) {
    LeaveRegisters<96>();
    WideWeights(a, scale, memory).Run();
  } else if (group == 3) {
    LeaveRegisters<80>();
    WideKeys(a, memory).Run();
  } else {
    TakeRegisters<168>();
    WideValues(a, group - 1, memory).Run();
  }
}

}  // namespace lockstep::kernels
