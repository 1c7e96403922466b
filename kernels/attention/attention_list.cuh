// A row's list of keys in blocks of 64 slots: window blocks anchored at position 0, then the selected or visible compressed rows.
// Contract: docs/numerics.md section 6, Attention.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/contract/exp_below_zero.h"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/elementwise/norm_row.cuh"
#include "kernels/kv_rows/kv_codec.cuh"
#include "kernels/linear/async_copy.cuh"

namespace lockstep::kernels {

inline constexpr int kAttentionSlots = 64;

// Blocks that any row's window can touch.
__host__ __device__ inline int MaxWindowBlocks(int window) { return (window + kAttentionSlots - 2) / kAttentionSlots + 1; }

// Filled slots of a block: [begin, end).
struct FilledSlots {
  int begin, end;
  __device__ bool Has(int slot) const { return slot >= begin && slot < end; }
  // Whether any of the `count` slots from `first` on is filled.
  __device__ bool AnyOf(int first, int count) const { return first < end && first + count > begin; }
};

struct KeyList {
  AttentionRow row;
  const std::int32_t* selected;  // null: every visible row
  std::int64_t window_begin, window_base;  // first position of the window, and of its block
  int window_blocks, blocks;
  std::int64_t count;  // compressed rows in the list

  // `selects`: whether the selection may be looked at; else the list has window rows alone until Select.
  __device__ KeyList(const AttentionArgs& a, std::int64_t t, bool selects = true) : row(a.row_T[t]) {
    window_begin = row.position - a.window + 1 > 0 ? row.position - a.window + 1 : 0;
    window_base = window_begin / kAttentionSlots * kAttentionSlots;
    window_blocks = static_cast<int>((row.position - window_base) / kAttentionSlots) + 1;
    selected = a.all_visible || !a.selected_TK ? nullptr : a.selected_TK + t * a.top_k;
    Count(a.all_visible ? row.visible : selected && selects ? a.count_T[t] : 0);
  }
  __device__ void Select(const AttentionArgs& a, std::int64_t t) { Count(a.count_T[t]); }

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
  // Addresses of pages to the L2 cache, by a warp.
  __device__ void AskForPages() const {
    constexpr int kPagesOfLine = 16;
    const int page = kPagesOfLine * static_cast<int>(threadIdx.x & 31);
    if (page <= row.visible >> row.compressed.page_shift) PrefetchLine(row.compressed.pages + page);
  }

 private:
  __device__ void Count(std::int64_t compressed) {
    count = compressed;
    blocks = window_blocks + static_cast<int>((count + kAttentionSlots - 1) / kAttentionSlots);
  }
  __device__ std::int64_t Begin(int b) const { return static_cast<std::int64_t>(b - window_blocks) * kAttentionSlots; }
};

// Slots of a head that a thread has when 16 / kRuns threads share its 64: x[r][c] is slot 64 / kRuns * r + 4 part + c. The threads of a head are
// kStride lanes apart, `part` of them after the first.
template <int kRuns>
struct SlotShare {
  static constexpr int kParts = 16 / kRuns, kStride = 32 / kParts, kRun = 64 / kRuns;
  float x[kRuns][4];

  __device__ static int Part() { return (threadIdx.x & 31) / kStride; }
  __device__ static int Head() { return threadIdx.x / 32 * kStride + (threadIdx.x & (kStride - 1)); }

  __device__ void Load(const float* score) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) *reinterpret_cast<float4*>(x[r]) = *reinterpret_cast<const float4*>(score + kRun * r + 4 * Part());
  }

  // Empty slots score -infinity.
  __device__ void Mask(FilledSlots filled) {
    if (filled.begin == 0 && filled.end == kAttentionSlots) return;
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) {
      if (!filled.Has(kRun * (i / 4) + 4 * Part() + i % 4)) x[i / 4][i % 4] = -__int_as_float(0x7f800000);
    }
  }

  __device__ float Max() const {
    float top = x[0][0];
#pragma unroll
    for (int i = 1; i < 4 * kRuns; ++i) top = fmaxf(top, x[i / 4][i % 4]);
#pragma unroll
    for (int lanes = 16; lanes >= kStride; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));
    return top;
  }

  // Scores to weights; empty slots become +0.
  __device__ void Weigh(float top) {
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) x[i / 4][i % 4] = contract::ExpBelowZero(contract::Sub(x[i / 4][i % 4], top));
  }

  // fold of the head's 64 values: runs, then threads, then the four of a thread lie 32, 16, .. apart.
  __device__ float Fold() const {
    float sum[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sum[c] = kRuns == 4 ? contract::Add(contract::Add(x[0][c], x[kRuns / 2][c]), contract::Add(x[1][c], x[kRuns - 1][c])) : contract::Add(x[0][c], x[1][c]);
#pragma unroll
      for (int lanes = 16; lanes >= kStride; lanes /= 2) sum[c] = contract::Add(sum[c], __shfl_xor_sync(0xffffffffu, sum[c], lanes));
    }
    return contract::Add(contract::Add(sum[0], sum[2]), contract::Add(sum[1], sum[3]));
  }

  __device__ void StoreBF16(std::uint16_t* weight) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      *reinterpret_cast<uint2*>(weight + kRun * r + 4 * Part()) = make_uint2(PackBF16(x[r][0], x[r][1]), PackBF16(x[r][2], x[r][3]));
    }
  }
};

// Which of the turning channels a channel of a head is; negative: it does not turn.
__device__ inline int Turning(const AttentionArgs& a, int channel) { return a.rope_table ? channel - (a.head_dim - a.rope_dim) : -1; }

// Cosine and sine of a pair of channels that turns.
__device__ inline float2 AngleOf(const AttentionArgs& a, std::int64_t position, int turning) {
  const float* cosine = a.rope_table + position * a.rope_dim + turning / 2;
  return make_float2(cosine[0], cosine[a.rope_dim / 2]);
}

// A pair of rounded channels turned back by an angle.
__device__ inline std::uint32_t TurnBack(std::uint32_t pair, float2 angle) {
  const float2 turned = Rotate(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u), angle.x, -angle.y);
  return PackBF16(turned.x, turned.y);
}

// A pair of rounded channels of a head (the even one is `channel`) as the output has it.
__device__ inline std::uint32_t TurnBack(const AttentionArgs& a, std::int64_t position, int channel, std::uint32_t pair) {
  const int turning = Turning(a, channel);
  return turning < 0 ? pair : TurnBack(pair, AngleOf(a, position, turning));
}

__device__ inline float NoScore() { return -__int_as_float(0x7f800000); }

// What a block with maximum `top` does to what was summed under the maximum before it.
__device__ inline float Rescale(float before, float top) { return before == NoScore() ? 0.0f : contract::ExpBelowZero(contract::Sub(before, top)); }

}  // namespace lockstep::kernels
