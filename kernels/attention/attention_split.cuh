// Attention of few rows, so that one row uses many processors: keys unpacked and scores, 16 slots and 32 heads a block, into memory; then the chain of
// blocks for 8 heads and 32 channels a block. Contract: docs/numerics.md section 6, Attention; ADR 0002 says why the chain may be cut like this.
//
// A row runs this code once, and fetching instructions takes longer than running them: loops stay loops. What other kernels do not write is read, or
// asked for, before the wait for them.
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
  static constexpr int kValueThreads = 32 * kBlocks;
  static constexpr int kChunk = kBlocks * kAttentionSlots;
  static constexpr int kValueStride = kChannels + 8, kWeightStride = kChunk + 8;

  float* score;           // [rows][heads][slots]
  std::uint16_t* key;     // bf16 [rows][slots][padded]; zero in empty slots of the list's blocks
  std::int64_t slots;     // room for every block of a row's list
  int padded;             // channels, a multiple of 32
  int compressed_blocks;  // room for those behind the window's
  int raw_stride;         // bytes from packed row to packed row in shared memory

  __device__ float* Score(const AttentionArgs& a, std::int64_t t, int head) const { return score + (t * a.heads + head) * slots; }
  __device__ std::uint16_t* Key(std::int64_t t, std::int64_t slot) const { return key + (t * slots + slot) * padded; }
  __host__ __device__ int stride() const { return padded + 8; }
  std::size_t score_bytes() const { return static_cast<std::size_t>((kScoreHeads + kScoreSlots) * stride()) * 2 + static_cast<std::size_t>(kScoreSlots * raw_stride); }
};

// A block's queries on their way to shared memory [heads][stride].
__device__ inline void FetchQueries(const AttentionArgs& a, std::int64_t t, int head0, const AttentionSplit& split, std::uint16_t* queries) {
  const int lane = threadIdx.x & 31, heads = min(AttentionSplit::kScoreHeads, a.heads - head0);
#pragma unroll 2
  for (int h = threadIdx.x / 32; h < AttentionSplit::kScoreHeads; h += AttentionSplit::kScoreWarps) {
    const std::uint16_t* from = a.q_THD + (t * a.heads + head0 + min(h, heads - 1)) * a.head_dim;
    std::uint16_t* to = queries + h * split.stride();
#pragma unroll 2
    for (int d = 8 * lane; d < split.padded; d += 256) {
      if (a.head_dim % 8 == 0 && d < a.head_dim) {
        CopyAsync<16>(to + d, from + d);
      } else {
#pragma unroll 1
        for (int e = d; e < d + 8; ++e) to[e] = e < a.head_dim ? from[e] : std::uint16_t{0};
      }
    }
  }
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
                                  float scale) {
  const int lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  const std::uint16_t* own_keys = keys + (lane & 7) * split.stride() + (lane >> 3) * 8;
  float c[4] = {};
#pragma unroll 2
  for (int k = 0; k < split.padded; k += 32) {
    std::uint32_t key[4];  // of two MMA blocks
    LoadMatrices(key, own_keys + k);
    MmaBF16(c, LoadTileA(queries, split.stride(), 0, k), key[0], key[1]);
    MmaBF16(c, LoadTileA(queries, split.stride(), 0, k + 16), key[2], key[3]);
  }
#pragma unroll
  for (int low = 0; low < 2; ++low) {
    const int head = head0 + 8 * low + g;
    if (head >= a.heads) continue;
    *reinterpret_cast<float2*>(split.Score(a, t, head) + slot0 + 2 * q) = make_float2(contract::Mul(c[2 * low], scale), contract::Mul(c[2 * low + 1], scale));
  }
}

// Block: 16 slots (x; those of compressed rows first, because where they lie takes longer to find out), 32 heads (y), row (z).
__global__ void __launch_bounds__(AttentionSplit::kScoreThreads) AttentionScoreKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionSplit split,
                                                                                      float scale) {
  StartNextKernel();
  extern __shared__ __align__(16) std::uint16_t queries[];  // [32][stride], then keys [16][stride] and packed rows
  std::uint16_t* keys = queries + AttentionSplit::kScoreHeads * split.stride();
  const std::int64_t t = blockIdx.z;
  const int head0 = static_cast<int>(blockIdx.y) * AttentionSplit::kScoreHeads, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int group = blockIdx.x, compressed_groups = split.compressed_blocks * AttentionSplit::kGroups;
  const bool compressed = group < compressed_groups, listed = compressed && !a.all_visible;
  auto* packed = reinterpret_cast<std::byte*>(keys + AttentionSplit::kScoreSlots * split.stride()) + warp * split.raw_stride;
  const int slot0 = group % AttentionSplit::kGroups * AttentionSplit::kScoreSlots, slot = slot0 + warp;
  std::int64_t entry = std::int64_t{group} * AttentionSplit::kScoreSlots + warp;  // of the list, then the row's number
  KeyList list(a, t, /*selects=*/false);
  if (listed) {
    if (warp == 0) list.AskForPages();
    WaitForKernelsBefore();
    if (entry < a.top_k) entry = a.selected_TK[t * a.top_k + entry];  // past the list's end: anything, and not used
    list.Select(a, t);
  }
  const int b = compressed ? list.window_blocks + group / AttentionSplit::kGroups : (group - compressed_groups) / AttentionSplit::kGroups;
  const bool mine = compressed ? b < list.blocks : list.IsWindow(b);
  const bool has = mine && list.Filled(b).Has(slot);
  SlotRow row{};
  if (has) row = compressed ? SlotRow{list.CompressedRow(entry), list.row.compressed.row_bytes} : SlotRow{list.Address(b, slot), static_cast<int>(list.row.window.row_bytes)};
  if (!listed) {
    row.Ask();
    WaitForKernelsBefore();
  }
  if (!mine) return;
  row.Fetch(packed);
  CommitCopies();
  FetchQueries(a, t, head0, split, queries);
  CommitCopies();
  WaitForCopies<1>();
  __syncwarp();
  std::uint16_t* out = split.Key(t, b * kAttentionSlots + slot);
  WithReader(compressed ? a.compressed_format : a.window_format, [&](const auto& reader) {
#pragma unroll 2
    for (int d = 8 * lane; d < split.padded; d += 256) {
      const uint4 values = has ? reader(packed, d) : make_uint4(0u, 0u, 0u, 0u);
      *reinterpret_cast<uint4*>(keys + warp * split.stride() + d) = values;
      if (blockIdx.y == 0) *reinterpret_cast<uint4*>(out + d) = values;
    }
  });
  WaitForCopies<0>();
  __syncthreads();
  constexpr int kTiles = AttentionSplit::kScoreHeads / 16 * (AttentionSplit::kScoreSlots / 8);
  if (warp >= kTiles) return;
  const int head = warp / 2 * 16, half = warp % 2 * 8;
  ScoreSlots(a, split, t, queries + head * split.stride(), keys + half * split.stride(), head0 + head, b * kAttentionSlots + slot0 + half, scale);
}

// Block: 32 channels (x), 8 heads (y), row (z). Warp b has the weights of block b of a chunk, four threads a head.
struct AttentionValues {
  static constexpr int kHeads = AttentionSplit::kValueHeads, kBlocks = AttentionSplit::kBlocks;
  struct Shared {
    std::uint16_t value[AttentionSplit::kChunk * AttentionSplit::kValueStride];
    std::uint16_t weight[2 * kHeads * AttentionSplit::kWeightStride];  // the second half stays zero: heads that an MMA has and the block has not
    // Of the chunk's blocks; element 0 of `max` is the maximum before the chunk.
    float max[kBlocks + 1][kHeads];
    float rescale[kBlocks][kHeads], sum[kBlocks][kHeads];
    float divisor[kHeads], sink[kHeads];
    float2 angle[AttentionSplit::kChannels / 2];  // of channels that turn
  };
  static constexpr int kSumThread = 64;  // behind the warps that multiply
  static_assert(AttentionSplit::kValueThreads == 32 * kBlocks);

  const AttentionArgs& a;
  const AttentionSplit& split;
  Shared& s;
  const std::int64_t t;
  using Share = SlotShare<4>;
  const int channel0, head0, warp, lane;
  const KeyList list;
  float denominator = 0.0f;  // threads kSumThread ..: of a head
  float out[2][4] = {};      // warps 0 and 1: 8 heads x 16 channels

  __device__ AttentionValues(const AttentionArgs& args, const AttentionSplit& s_args, Shared& shared)
      : a(args), split(s_args), s(shared), t(blockIdx.z), channel0(static_cast<int>(blockIdx.x) * AttentionSplit::kChannels),
        head0(static_cast<int>(blockIdx.y) * kHeads), warp(threadIdx.x / 32), lane(threadIdx.x & 31), list(args, t) {}

  __device__ void Run() {
    const int sum_head = static_cast<int>(threadIdx.x) - kSumThread;
    const bool sums = sum_head >= 0 && sum_head < kHeads;
    int first = 0;
#pragma unroll 1
    do {
      Share share;
      if ((first + warp) * kAttentionSlots < split.slots) share.Load(split.Score(a, t, min(head0 + (lane & (kHeads - 1)), a.heads - 1)) + (first + warp) * kAttentionSlots);
      const int blocks = min(kBlocks, list.blocks - first);
      FetchValues(first, blocks);
      Softmax(share, first, blocks);
      WaitForCopies<0>();
      __syncthreads();
      if (warp < 2) WeightedValues(blocks);
      if (sums) Sum(sum_head, blocks);
      __syncthreads();
    } while ((first += kBlocks) < list.blocks);
    if (sums) s.divisor[sum_head] = contract::Add(denominator, contract::Exp(contract::Sub(s.sink[sum_head], s.max[0][sum_head])));
    __syncthreads();
    if (warp < 2) Store();
  }

  // What does not depend on other kernels.
  __device__ static void Prepare(const AttentionArgs& a, Shared& s) {
    const int head = static_cast<int>(blockIdx.y * kHeads + threadIdx.x), pair = static_cast<int>(threadIdx.x) - 32;
    if (threadIdx.x < kHeads) s.max[0][threadIdx.x] = NoScore(), s.sink[threadIdx.x] = head < a.heads ? a.sink_H[head] : 0.0f;
    if (pair >= 0 && pair < AttentionSplit::kChannels / 2) {
      const int channel = static_cast<int>(blockIdx.x) * AttentionSplit::kChannels + 2 * pair, turning = Turning(a, channel);
      if (turning >= 0 && channel < a.head_dim) s.angle[pair] = AngleOf(a, a.row_T[blockIdx.z].position, turning);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < kHeads * AttentionSplit::kWeightStride / 2; i += AttentionSplit::kValueThreads) {
      reinterpret_cast<std::uint32_t*>(s.weight + kHeads * AttentionSplit::kWeightStride)[i] = 0u;
    }
  }

 private:
  // The chunk's values on their way.
  __device__ void FetchValues(int first, int blocks) {
    constexpr int kPieces = AttentionSplit::kChannels / 8;
    const std::uint16_t* from = split.Key(t, first * std::int64_t{kAttentionSlots}) + channel0;
#pragma unroll 4
    for (int i = threadIdx.x; i < blocks * kAttentionSlots * kPieces; i += AttentionSplit::kValueThreads) {
      const int slot = i / kPieces, piece = i % kPieces * 8;
      CopyAsync<16>(s.value + slot * AttentionSplit::kValueStride + piece, from + slot * split.padded + piece);
    }
    CommitCopies();
  }

  // Weights of the chunk's blocks, from scores.
  __device__ void Softmax(Share& share, int first, int blocks) {
    const bool mine = warp < blocks, leader = Share::Part() == 0;
    const int head = lane & (kHeads - 1);
    if (mine) {
      share.Mask(list.Filled(first + warp));
      const float top = share.Max();
      if (leader) s.max[warp + 1][head] = top;
    }
    __syncthreads();
    if (!mine) return;
    float before = NoScore();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) before = b <= warp ? fmaxf(before, s.max[b][head]) : before;
    const float top = fmaxf(before, s.max[warp + 1][head]);
    share.Weigh(top);
    share.StoreBF16(s.weight + head * AttentionSplit::kWeightStride + warp * kAttentionSlots);
    const float sum = share.Fold();
    if (leader) s.sum[warp][head] = sum, s.rescale[warp][head] = Rescale(before, top);
  }

  // Denominator of a head; leaves the chunk's maximum for the next one.
  __device__ void Sum(int head, int blocks) {
    float top = s.max[0][head];
#pragma unroll 2
    for (int b = 0; b < blocks; ++b) {
      denominator = contract::Fma(denominator, s.rescale[b][head], s.sum[b][head]);
      top = fmaxf(top, s.max[b + 1][head]);
    }
    s.max[0][head] = top;
  }

  // Of heads g; the MMA's other eight are zero.
  __device__ void WeightedValues(int blocks) {
    const int g = lane / 4;
#pragma unroll 2
    for (int b = 0; b < blocks; ++b) {
      const float factor = s.rescale[b][g];
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i / 2][i % 2] = contract::Mul(out[i / 2][i % 2], factor);
#pragma unroll
      for (int k = 0; k < kAttentionSlots; k += 16) {
        const FragmentA fragment = LoadTileA(s.weight, AttentionSplit::kWeightStride, 0, b * kAttentionSlots + k);
        std::uint32_t value[4];
        LoadTileBTransposed(value, s.value, AttentionSplit::kValueStride, 16 * warp, b * kAttentionSlots + k);
        MmaBF16(out[0], fragment, value[0], value[1]);
        MmaBF16(out[1], fragment, value[2], value[3]);
      }
    }
  }

  __device__ void Store() {
    const int g = lane / 4, q = lane & 3;
    if (head0 + g >= a.heads) return;
    std::uint16_t* head = a.out_THD + (t * a.heads + head0 + g) * a.head_dim;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int channel = channel0 + 16 * warp + 8 * n + 2 * q;
      if (channel >= a.head_dim) continue;
      std::uint32_t pair = PackBF16(contract::Div(out[n][0], s.divisor[g]), contract::Div(out[n][1], s.divisor[g]));
      if (Turning(a, channel) >= 0) pair = TurnBack(pair, s.angle[(channel - channel0) / 2]);
      if (a.head_dim % 2 == 0) {
        *reinterpret_cast<std::uint32_t*>(head + channel) = pair;
      } else {
        head[channel] = static_cast<std::uint16_t>(pair);
        if (channel + 1 < a.head_dim) head[channel + 1] = static_cast<std::uint16_t>(pair >> 16);
      }
    }
  }
};

__global__ void __launch_bounds__(AttentionSplit::kValueThreads) AttentionValueKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionSplit split) {
  StartNextKernel();
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<AttentionValues::Shared*>(memory);
  AttentionValues::Prepare(a, shared);
  WaitForKernelsBefore();
  AttentionValues values(a, split, shared);
  values.Run();
}

}  // namespace lockstep::kernels
