// Attention of few rows, so that one row uses many processors: keys unpacked and scores, 16 slots and 32 heads a block, into memory; then the chain of
// blocks for 8 heads and 32 channels a block. Contract: docs/numerics.md section 6, Attention; ADR 0002 says why the chain may be cut like this.
//
// A row runs this code once, and fetching instructions takes longer than running them. So where all blocks have places while the kernels before run, they
// go through their steps once on whatever is in shared memory, to no effect, before they wait. What other kernels do not write is read, or asked for, before the
// wait too.
#pragma once

#include "kernels/attention/attention_list.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

struct AttentionSplit {
  static constexpr int kScoreHeads = 32, kScoreSlots = 16, kScoreWarps = kScoreSlots, kScoreThreads = 32 * kScoreWarps;  // a warp a slot
  static constexpr int kGroups = kAttentionSlots / kScoreSlots;
  static constexpr int kValueHeads = 8;
  static constexpr int kChannels = 32;  // of a value block
  static constexpr int kBlocks = 12;    // of 64 slots that a value block holds at a time: window and 512 selected rows
  static constexpr int kValueThreads = 32 * (kBlocks + kChannels / 16);
  static constexpr int kChunk = kBlocks * kAttentionSlots;
  static constexpr int kWeightStride = kChunk + 8;

  float* score;           // [rows][heads][slots]
  std::uint16_t* key;     // bf16 [rows][padded / 32][slots][32]; zero in empty slots of the list's blocks
  std::int64_t slots;     // room for every block of a row's list
  int padded;             // channels, a multiple of 32
  int compressed_blocks;  // room for those behind the window's
  int raw_stride;         // bytes from packed row to packed row in shared memory
  bool rehearse;          // one row, and one chunk: blocks of both kernels have places together
  bool rehearse_scores;   // and the kernel before leaves room for those of scores

  __device__ float* Score(const AttentionArgs& a, std::int64_t t, int head) const { return score + (t * a.heads + head) * slots; }
  __device__ std::uint16_t* Key(std::int64_t t, std::int64_t slot, int channel) const { return key + ((t * (padded / kChannels) + channel / kChannels) * slots + slot) * kChannels; }
  // Where eight channels of a slot are among the 32 of all slots: eight slots' in different banks of shared memory.
  __device__ static int Place(int slot, int eight) { return slot * kChannels + 8 * (eight ^ (slot >> 1 & 3)); }
  __host__ __device__ int stride() const { return padded + 8; }
  std::size_t score_bytes() const { return static_cast<std::size_t>((kScoreHeads + kScoreSlots) * stride()) * 2 + static_cast<std::size_t>(kScoreSlots * raw_stride); }
};

}  // namespace lockstep::kernels
