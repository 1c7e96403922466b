// Attention of many rows on sm_90a, heads of 512 channels, as a pipeline of four warpgroups: one unpacks keys into two buffers of 64 slots, one multiplies
// queries by them and makes the softmax's weights, two weigh 256 channels each. Blocks go from row to row. Contract: docs/numerics.md section 6, Attention.
#pragma once

#include "kernels/attention/attention_wide_keys.cuh"
#include "kernels/attention/attention_wide_values.cuh"
#include "kernels/attention/attention_wide_weights.cuh"
#include "kernels/device/warpgroups.cuh"

namespace lockstep::kernels {

// Registers: all of a multiprocessor among the four.
__device__ inline void RunWideAttention(const AttentionArgs& a, float scale, std::byte* memory) {
  const int group = threadIdx.x / WideLayout::kGroup;
  if (group == 0) {
    GiveRegisters<96>();
    WideWeights(a, scale, memory).Run();
  } else if (group == 3) {
    GiveRegisters<80>();
    WideKeys(a, memory).Run();
  } else {
    TakeRegisters<168>();
    WideValues(a, group - 1, memory).Run();
  }
}

}  // namespace lockstep::kernels
