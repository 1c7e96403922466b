// The first of the two kernels of attention_split.cuh: keys and scores.
#pragma once

#include "kernels/attention/attention_split.cuh"

namespace lockstep::kernels {

// A block's queries on their way to shared memory [heads][stride].
__device__ inline void FetchQueries(const AttentionArgs& a, std::int64_t t, int head0, const AttentionSplit& split, std::uint16_t* queries) {
  const int lane = threadIdx.x & 31, last = a.heads - 1;
  const bool whole = a.head_dim == split.padded;
#pragma unroll 1
  for (int h = threadIdx.x / 32; h < AttentionSplit::kScoreHeads; h += AttentionSplit::kScoreWarps) {
    const std::uint16_t* from = a.q_THD + (t * a.heads + min(head0 + h, last)) * a.head_dim;
    std::uint16_t* to = queries + h * split.stride();
    if (whole) {
#pragma unroll 2
      for (int d = 8 * lane; d < split.padded; d += 256) CopyAsync<16>(to + d, from + d);
    } else {
#pragma unroll 1
      for (int d = lane; d < split.padded; d += 32) to[d] = d < a.head_dim ? from[d] : std::uint16_t{0};
    }
  }
  CommitCopies();
}

// The packed row of a slot, for a warp.
struct SlotRow {
  const std::byte* from;
  int bytes;

  // By kUnit bytes to shared memory.
  template <int kUnit>
  __device__ void Copy(std::byte* to) const {
#pragma unroll 2
    for (int i = kUnit * static_cast<int>(threadIdx.x & 31); i < bytes; i += 32 * kUnit) CopyAsync<kUnit>(to + i, from + i);
  }
  __device__ void Fetch(std::byte* to) const {
    if ((static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from)) | static_cast<unsigned>(bytes)) % 8 == 0) Copy<8>(to);
    else Copy<4>(to);
  }
  // Its lines to the L2 cache.
  __device__ void Ask() const {
    constexpr int kLine = 128;
    if (const int at = kLine * static_cast<int>(threadIdx.x & 31); at < bytes) PrefetchLine(from + at);
  }
};

// Scores of 16 heads and 8 slots by a warp, from shared memory.
__device__ inline void ScoreSlots(const AttentionArgs& a, const AttentionSplit& split, std::int64_t t, const std::uint16_t* queries, const std::uint16_t* keys, int head0, int slot0,
                                  float scale, bool real) {
  const int lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  std::uint32_t query_at = SharedAddress(queries + (lane & 15) * split.stride() + (lane >> 4) * 8), key_at = SharedAddress(keys + (lane & 7) * split.stride() + (lane >> 3) * 8);
  struct Operands {  // of two MMA blocks
    FragmentA query[2];
    std::uint32_t key[4];
  } next;
  const auto load = [&] {
    LoadMatricesAt(next.key, key_at);
    LoadMatricesAt(next.query[0].a, query_at);
    LoadMatricesAt(next.query[1].a, query_at + 32);
    key_at += 64, query_at += 64;
  };
  float c[4] = {};
  load();
#pragma unroll 4
  for (int k = 32; k <= split.padded; k += 32) {
    const Operands now = next;
    if (k < split.padded) load();
    MmaBF16(c, now.query[0], now.key[0], now.key[1]);
    MmaBF16(c, now.query[1], now.key[2], now.key[3]);
  }
#pragma unroll
  for (int low = 0; low < 2; ++low) {
    const int head = head0 + 8 * low + g;
    if (head >= a.heads || !real) continue;
    *reinterpret_cast<float2*>(split.Score(a, t, head) + slot0 + 2 * q) = make_float2(contract::Mul(c[2 * low], scale), contract::Mul(c[2 * low + 1], scale));
  }
}

// Block: 16 slots (x; those of compressed rows first, because where they lie takes longer to find out), 32 heads (y), row (z). A warp unpacks a slot's row.
struct AttentionScores {
  static constexpr int kSlots = AttentionSplit::kScoreSlots, kHeads = AttentionSplit::kScoreHeads;

  const AttentionArgs& a;
  const AttentionSplit& split;
  const std::int64_t t;
  const int head0, warp, lane, group, compressed_groups;
  const bool compressed, listed;
  const int slot;  // of its block
  std::uint16_t *const queries, *const keys;  // [32][stride], [16][stride]
  std::byte* const packed;
  std::int64_t entry;  // of the list, then the compressed row's number
  KeyList list;
  SlotRow row{};
  bool has = false;

  __device__ AttentionScores(const AttentionArgs& args, const AttentionSplit& s_args, std::uint16_t* memory)
      : a(args), split(s_args), t(blockIdx.z), head0(static_cast<int>(blockIdx.y) * kHeads), warp(threadIdx.x / 32), lane(threadIdx.x & 31), group(blockIdx.x),
        compressed_groups(split.compressed_blocks * AttentionSplit::kGroups), compressed(group < compressed_groups), listed(compressed && !a.all_visible),
        slot(group % AttentionSplit::kGroups * kSlots + warp), queries(memory), keys(memory + kHeads * split.stride()),
        packed(reinterpret_cast<std::byte*>(keys + kSlots * split.stride()) + warp * split.raw_stride), entry(std::int64_t{group} * kSlots + warp),
        list(args, t, /*selects=*/false) {}

  __device__ void Run(float scale) {
    if (listed) {
      if (warp == 0) list.AskForPages();
    } else {
      FindRow();
      row.Ask();
      if (!Mine()) return WaitForKernelsBefore();
    }
#pragma unroll 1
    for (int real = split.rehearse_scores ? 0 : 1; real < 2; ++real) {
      if (real) {
        WaitForKernelsBefore();
        if (!Fetch()) return;
      }
      Unpack(real);
      __syncthreads();
      Score(scale, real);
      if (!real) __syncthreads();
    }
  }

 private:
  __device__ int Block() const { return compressed ? list.window_blocks + group / AttentionSplit::kGroups : (group - compressed_groups) / AttentionSplit::kGroups; }
  __device__ bool Mine() const { return compressed ? Block() < list.blocks : list.IsWindow(Block()); }

  // The row of this warp's slot, if the slot is filled.
  __device__ void FindRow() {
    has = Mine() && list.Filled(Block()).Has(slot);
    if (has) row = compressed ? SlotRow{list.CompressedRow(entry), list.row.compressed.row_bytes} : SlotRow{list.Address(Block(), slot), static_cast<int>(list.row.window.row_bytes)};
  }

  // Queries and packed rows to shared memory, once they are there; false: the list ends before this block.
  __device__ bool Fetch() {
    if (listed) {
      if (entry < a.top_k) entry = a.selected_TK[t * a.top_k + entry];  // past the list's end: anything, and not used
      list.Select(a, t);
    }
    FetchQueries(a, t, head0, split, queries);
    if (listed) {
      if (!Mine()) return false;
      FindRow();
    }
    row.Fetch(packed);
    CommitCopies();
    WaitForCopies<0>();
    __syncwarp();
    return true;
  }

  __device__ void Unpack(bool real) {
    std::uint16_t *to = keys + warp * split.stride(), *out = split.Key(t, Block() * kAttentionSlots, 0) + AttentionSplit::Place(slot, lane % 4);
    const std::int64_t out_stride = split.slots * AttentionSplit::kChannels;
    const bool keeps = real && blockIdx.y == 0;
    WithReader(compressed ? a.compressed_format : a.window_format, [&](const auto& reader) {
#pragma unroll 2
      for (int d = 8 * lane; d < split.padded; d += 256) {
        const uint4 values = has ? reader(packed, d) : make_uint4(0u, 0u, 0u, 0u);
        *reinterpret_cast<uint4*>(to + d) = values;
        if (keeps) *reinterpret_cast<uint4*>(out + d / AttentionSplit::kChannels * out_stride) = values;
      }
    });
  }

  __device__ void Score(float scale, bool real) const {
    constexpr int kTiles = kHeads / 16 * (kSlots / 8);
    if (warp >= kTiles) return;
    const int head = warp / 2 * 16, half = warp % 2 * 8;
    ScoreSlots(a, split, t, queries + head * split.stride(), keys + half * split.stride(), head0 + head, Block() * kAttentionSlots + group % AttentionSplit::kGroups * kSlots + half,
               scale, real);
  }
};

__global__ void __launch_bounds__(AttentionSplit::kScoreThreads, 2) AttentionScoreKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionSplit split,
                                                                                      float scale) {
  StartNextKernel();
  extern __shared__ __align__(16) std::uint16_t scores_memory[];
  AttentionScores(a, split, scores_memory).Run(scale);
}

}  // namespace lockstep::kernels
