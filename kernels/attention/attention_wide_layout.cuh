// What the warpgroups of attention_wide.cuh share: shared memory, barriers, and which heads of which row a block takes.
#pragma once

#include "kernels/attention/attention_list.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/linear/wgmma_bf16.cuh"

namespace lockstep::kernels {

// Bytes of shared memory and what the warpgroups say to each other.
struct WideLayout {
  static constexpr int kThreads = 512, kGroup = 128, kHeads = 64, kSlots = kAttentionSlots, kDim = 512;
  static constexpr int kTile = 64 * 128, kMatrix = kDim / 64 * kTile;  // [64 rows][64 channels], and all channels of 64 rows
  static constexpr int kQueries = 0, kKeys = kMatrix, kWeights = kKeys + 2 * kMatrix, kFactors = kWeights + kTile, kPacked = kFactors + kHeads * 4;
  static constexpr int kRing = 8, kWarps = 4;  // packed rows that are on their way to each warp that unpacks
  static constexpr int kMaxRowBytes = 736;
  static constexpr int kBytes = kPacked + kWarps * kRing * kMaxRowBytes + 1024;  // 1024: where it begins is made a multiple

  // Named barriers. Keys and weights are full when those who read them may, free when those who write them may.
  enum Barrier { kScoresOnly = 1, kKeysFull, kKeysFullOdd, kKeysFree, kKeysFreeOdd, kWeightsFull, kWeightsFree };

  // Where 16 bytes of a row's channels d .. d+7 lie in [row][512].
  __device__ static int Place(int row, int d) { return d / 64 * kTile + row * 128 + ((d / 8 % 8) ^ (row % 8)) * 16; }
};

__device__ inline void WaitAt(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
__device__ inline void ArriveAt(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
__device__ inline void ShowToTensorCores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Made anew where it is used: kept, the descriptors of all steps would take registers.
__device__ inline std::uint64_t MadeHere(std::uint64_t descriptor) {
  asm volatile("" : "+l"(descriptor));
  return descriptor;
}

// A row's heads that a block takes.
struct WideItem {
  int row, head_begin, heads;
  __device__ WideItem(const AttentionArgs& a, int item) {
    const int groups = (a.heads + WideLayout::kHeads - 1) / WideLayout::kHeads;
    row = item / groups;
    head_begin = item % groups * WideLayout::kHeads;
    heads = min(WideLayout::kHeads, a.heads - head_begin);
  }
  __device__ static int Count(const AttentionArgs& a) { return static_cast<int>(a.rows) * ((a.heads + WideLayout::kHeads - 1) / WideLayout::kHeads); }
};

}  // namespace lockstep::kernels
