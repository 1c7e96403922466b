// A row's list of keys in blocks of 64 slots: window blocks anchored at position 0, then the selected or visible compressed rows.
// Contract: docs/numerics.md section 6, Attention.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/kv_rows/kv_codec.cuh"

namespace lockstep::kernels {

inline constexpr int kAttentionSlots = 64;

// Blocks that any row's window can touch.
__host__ __device__ inline int MaxWindowBlocks(int window) { return (window + kAttentionSlots - 2) / kAttentionSlots + 1; }

// Filled slots of a block: [begin, end).
struct FilledSlots {
  int begin, end;
  __device__ bool Has(int slot) const { return slot >= begin && slot < end; }
  // Whether any of the 16 slots from `first` on is filled.
  __device__ bool AnyOf16(int first) const { return first < end && first + 16 > begin; }
};

struct KeyList {
  AttentionRow row;
  const std::int32_t* selected;  // null: every visible row
  std::int64_t window_begin, window_base;  // first position of the window, and of its block
  int window_blocks, blocks;
  std::int64_t count;  // compressed rows in the list

  __device__ KeyList(const AttentionArgs& a, std::int64_t t) : row(a.row_T[t]) {
    window_begin = row.position - a.window + 1 > 0 ? row.position - a.window + 1 : 0;
    window_base = window_begin / kAttentionSlots * kAttentionSlots;
    window_blocks = static_cast<int>((row.position - window_base) / kAttentionSlots) + 1;
    selected = a.all_visible || !a.selected_TK ? nullptr : a.selected_TK + t * a.top_k;
    count = a.all_visible ? row.visible : selected ? a.count_T[t] : 0;
    blocks = window_blocks + static_cast<int>((count + kAttentionSlots - 1) / kAttentionSlots);
  }

  __device__ bool IsWindow(int b) const { return b < window_blocks; }

  __device__ FilledSlots Filled(int b) const {
    if (!IsWindow(b)) return {0, static_cast<int>(min(count - Begin(b), std::int64_t{kAttentionSlots}))};
    const std::int64_t base = window_base + b * std::int64_t{kAttentionSlots};
    return {static_cast<int>(max(window_begin - base, std::int64_t{0})), static_cast<int>(min(row.position + 1 - base, std::int64_t{kAttentionSlots}))};
  }

  // The packed row in a filled slot.
  __device__ const std::byte* Address(int b, int slot) const {
    if (IsWindow(b)) {
      const WindowRows& w = row.window;
      const std::int64_t p = window_base + b * std::int64_t{kAttentionSlots} + slot;
      return p >= w.step_begin ? w.step_rows + (p - w.step_begin) * w.row_bytes : w.ring + static_cast<std::uint32_t>(p) % static_cast<std::uint32_t>(w.ring_rows) * w.row_bytes;
    }
    return CompressedRow(selected ? selected[Begin(b) + slot] : Begin(b) + slot);
  }

  __device__ const std::byte* CompressedRow(std::int64_t i) const {
    const PagedRows& rows = row.compressed;
    return rows.pages[i >> rows.page_shift] + (i & ((std::int64_t{1} << rows.page_shift) - 1)) * rows.row_bytes;
  }

 private:
  __device__ std::int64_t Begin(int b) const { return static_cast<std::int64_t>(b - window_blocks) * kAttentionSlots; }
};

// Four threads share the 64 slots of a head: thread `part` (lane bits 3 and 4) has slots 16r + 4 part + c in x[r][c].
using SlotShare = float[4][4];

__device__ inline float Max64(const SlotShare& x) {
  float top = x[0][0];
#pragma unroll
  for (int i = 1; i < 16; ++i) top = fmaxf(top, x[i / 4][i % 4]);
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
  return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
}

__device__ inline float Fold64(const SlotShare& x) {
  float sum[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    sum[c] = contract::Add(contract::Add(x[0][c], x[2][c]), contract::Add(x[1][c], x[3][c]));
    sum[c] = contract::Add(sum[c], __shfl_xor_sync(0xffffffffu, sum[c], 16));
    sum[c] = contract::Add(sum[c], __shfl_xor_sync(0xffffffffu, sum[c], 8));
  }
  return contract::Add(contract::Add(sum[0], sum[2]), contract::Add(sum[1], sum[3]));
}

__device__ inline float NoScore() { return -__int_as_float(0x7f800000); }

// A head's scores of a block, -infinity in empty slots.
__device__ inline void LoadScores(const float* score, int part, FilledSlots filled, SlotShare& s) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int slot = 16 * r + 4 * part;
    *reinterpret_cast<float4*>(s[r]) = *reinterpret_cast<const float4*>(score + slot);
#pragma unroll
    for (int c = 0; c < 4; ++c) s[r][c] = filled.Has(slot + c) ? s[r][c] : NoScore();
  }
}

// Scores to weights; empty slots become +0.
__device__ inline void WeighScores(float top, SlotShare& s) {
#pragma unroll
  for (int i = 0; i < 16; ++i) s[i / 4][i % 4] = contract::Exp(contract::Sub(s[i / 4][i % 4], top));
}

__device__ inline void StoreWeights(const SlotShare& w, int part, std::uint16_t* weight) {
#pragma unroll
  for (int r = 0; r < 4; ++r) *reinterpret_cast<uint2*>(weight + 16 * r + 4 * part) = make_uint2(PackBF16(w[r][0], w[r][1]), PackBF16(w[r][2], w[r][3]));
}

// What a block with maximum `top` does to what was summed under the maximum before it.
__device__ inline float Rescale(float before, float top) { return before == NoScore() ? 0.0f : contract::Exp(contract::Sub(before, top)); }

}  // namespace lockstep::kernels
