// Attention of few rows, so that one row uses many processors: keys unpacked and scores, 16 slots a block, into memory; then the chain of blocks for
// 16 heads and 32 channels a block. Contract: docs/numerics.md section 6, Attention; ADR 0002 says why the chain may be cut like this.
#pragma once

#include "kernels/attention/attention_list.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

struct AttentionSplit {
  static constexpr int kHeads = 16;  // of a warp of the score block, and of a value block
  static constexpr int kSlots = 16;  // of a score block
  static constexpr int kScoreThreads = 128, kHeadsOfScoreBlock = kScoreThreads / 32 * kHeads;
  static constexpr int kGroups = kAttentionSlots / kSlots;
  static constexpr int kValueThreads = 256;
  static constexpr int kChannels = 32;  // of a value block
  static constexpr int kBlocks = 12;    // of 64 slots that a value block holds at a time: window and 512 selected rows
  static constexpr int kChunk = kBlocks * kAttentionSlots;
  static constexpr int kValueStride = kChannels + 8, kWeightStride = kChunk + 8;

  float* score;           // [rows][heads][slots]
  std::uint16_t* key;     // bf16 [rows][slots][padded]; undefined where no slot of 16 is filled
  std::int64_t slots;     // room for every block of a row's list
  int padded;             // channels, a multiple of 32
  int compressed_blocks;  // room for those behind the window's

  __device__ float* Score(const AttentionArgs& a, std::int64_t t, int head) const { return score + (t * a.heads + head) * slots; }
  __device__ std::uint16_t* Key(std::int64_t t, std::int64_t slot) const { return key + (t * slots + slot) * padded; }
  __host__ __device__ int stride() const { return padded + 8; }
  std::size_t score_bytes() const { return static_cast<std::size_t>((kHeadsOfScoreBlock + kSlots) * stride()) * 2; }
};

// Queries of a block's heads on their way to shared memory [heads][stride].
__device__ inline void FetchQueries(const AttentionArgs& a, std::int64_t t, int head0, const AttentionSplit& split, std::uint16_t* queries) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  for (int h = warp; h < AttentionSplit::kHeadsOfScoreBlock; h += AttentionSplit::kScoreThreads / 32) {
    const std::uint16_t* from = a.q_THD + (t * a.heads + min(head0 + h, a.heads - 1)) * a.head_dim;
    std::uint16_t* to = queries + h * split.stride();
    if (a.head_dim % 8 == 0) {
      for (int d = 8 * lane; d < a.head_dim; d += 256) CopyAsync<16>(to + d, from + d);
      for (int d = a.head_dim + 8 * lane; d < split.padded; d += 256) *reinterpret_cast<uint4*>(to + d) = make_uint4(0u, 0u, 0u, 0u);
    } else {
      for (int d = lane; d < split.padded; d += 32) to[d] = d < a.head_dim ? from[d] : std::uint16_t{0};
    }
  }
  CommitCopies();
}

// Block: 16 slots (x; those of compressed rows first, because where they lie takes longer to find out), 64 heads (y), row (z).
__global__ void __launch_bounds__(AttentionSplit::kScoreThreads, 2) AttentionScoreKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionSplit split,
                                                                                      float scale) {
  BeginKernel();
  extern __shared__ __align__(16) std::uint16_t queries[];  // [64][stride], then keys [16][stride]
  std::uint16_t* keys = queries + AttentionSplit::kHeadsOfScoreBlock * split.stride();
  const std::int64_t t = blockIdx.z;
  const int head_begin = static_cast<int>(blockIdx.y) * AttentionSplit::kHeadsOfScoreBlock;
  const int group = blockIdx.x, compressed_groups = split.compressed_blocks * AttentionSplit::kGroups;
  const bool compressed = group < compressed_groups;
  const int slot0 = group % AttentionSplit::kGroups * AttentionSplit::kSlots;
  constexpr int kThreadsPerSlot = AttentionSplit::kScoreThreads / AttentionSplit::kSlots;
  const int slot = threadIdx.x / kThreadsPerSlot, part = threadIdx.x % kThreadsPerSlot;
  std::int64_t entry = std::int64_t{group} * AttentionSplit::kSlots + slot;  // of the list, then the row's number
  if (compressed && !a.all_visible) entry = entry < a.top_k ? a.selected_TK[t * a.top_k + entry] : 0;
  const KeyList list(a, t);
  const int b = compressed ? list.window_blocks + group / AttentionSplit::kGroups : (group - compressed_groups) / AttentionSplit::kGroups;
  if (compressed ? b >= list.blocks : !list.IsWindow(b)) return;
  const FilledSlots filled = list.Filled(b);
  if (!filled.AnyOf(slot0, AttentionSplit::kSlots)) return;
  FetchQueries(a, t, head_begin, split, queries);
  const bool has = filled.Has(slot0 + slot);
  const std::byte* row = !has ? nullptr : compressed ? list.CompressedRow(entry) : list.Address(b, slot0 + slot);
  std::uint16_t* out = split.Key(t, b * kAttentionSlots + slot0 + slot);
  WithReader(compressed ? a.compressed_format : a.window_format, [&](const auto& reader) {
#pragma unroll 8
    for (int d = 8 * part; d < split.padded; d += 8 * kThreadsPerSlot) {
      const uint4 values = has ? reader(row, d) : make_uint4(0u, 0u, 0u, 0u);
      *reinterpret_cast<uint4*>(keys + slot * split.stride() + d) = values;
      if (blockIdx.y == 0) *reinterpret_cast<uint4*>(out + d) = values;
    }
  });
  WaitForCopies<0>();
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3, head0 = head_begin + warp * AttentionSplit::kHeads;
  float c[2][4] = {};
#pragma unroll 8
  for (int k = 0; k < split.padded; k += 16) {
    const FragmentA fragment = LoadTileA(queries, split.stride(), warp * AttentionSplit::kHeads, k);
    std::uint32_t key[4];
    LoadTileB(key, keys, split.stride(), 0, k);
    MmaBF16(c[0], fragment, key[0], key[1]);
    MmaBF16(c[1], fragment, key[2], key[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = i / 2, low = i % 2, head = head0 + 8 * low + g;
    if (head >= a.heads) continue;
    float* to = split.Score(a, t, head) + b * kAttentionSlots + slot0 + 8 * n + 2 * q;
    *reinterpret_cast<float2*>(to) = make_float2(contract::Mul(c[n][2 * low], scale), contract::Mul(c[n][2 * low + 1], scale));
  }
}

// Block: 32 channels (x), 16 heads (y), row (z).
struct AttentionValues {
  struct Shared {
    std::uint16_t value[AttentionSplit::kChunk * AttentionSplit::kValueStride];
    std::uint16_t weight[AttentionSplit::kHeads * AttentionSplit::kWeightStride];
    // Of the chunk's blocks; element 0 of `max` is the maximum before the chunk.
    float max[AttentionSplit::kBlocks + 1][AttentionSplit::kHeads];
    float rescale[AttentionSplit::kBlocks][AttentionSplit::kHeads], sum[AttentionSplit::kBlocks][AttentionSplit::kHeads];
    float divisor[AttentionSplit::kHeads];
  };
  static constexpr int kQuads = AttentionSplit::kValueThreads / 4;
  static constexpr int kRounds = AttentionSplit::kBlocks * AttentionSplit::kHeads / kQuads;

  const AttentionArgs& a;
  const AttentionSplit& split;
  Shared& s;
  const std::int64_t t;
  using Share = SlotShare<4>;
  const int channel0, head0, warp, lane;
  Share share[kRounds];  // scores of the chunk
  const bool started;    // before the list is known, which takes as long
  const KeyList list;
  float denominator = 0.0f;  // thread h < 16: of head h
  float out[2][4] = {};      // warps 0 and 1: 16 heads x 16 channels

  __device__ AttentionValues(const AttentionArgs& args, const AttentionSplit& s_args, Shared& shared)
      : a(args), split(s_args), s(shared), t(blockIdx.z), channel0(static_cast<int>(blockIdx.x) * AttentionSplit::kChannels),
        head0(static_cast<int>(blockIdx.y) * AttentionSplit::kHeads), warp(threadIdx.x / 32), lane(threadIdx.x & 31), started(Fetch(0)), list(args, t) {}

  __device__ void Run() {
    if (threadIdx.x < AttentionSplit::kHeads) s.max[0][threadIdx.x] = NoScore();
    for (int first = 0; first < list.blocks; first += AttentionSplit::kBlocks) {
      const int blocks = min(AttentionSplit::kBlocks, list.blocks - first);
      Softmax(first, blocks);
      WaitForCopies<0>();
      __syncthreads();
      if (warp < 2) WeightedValues(first, blocks);
      if (threadIdx.x >= 64 && threadIdx.x < 64 + AttentionSplit::kHeads) Sum(threadIdx.x - 64, blocks);
      __syncthreads();
      if (first + AttentionSplit::kBlocks < list.blocks) Fetch(first + AttentionSplit::kBlocks);
    }
    if (threadIdx.x >= 64 && threadIdx.x < 64 + AttentionSplit::kHeads) {
      const int h = threadIdx.x - 64;
      const float sink = head0 + h < a.heads ? a.sink_H[head0 + h] : 0.0f;
      s.divisor[h] = contract::Add(denominator, contract::Exp(contract::Sub(sink, s.max[0][h])));
    }
    __syncthreads();
    if (warp < 2) Store();
  }

 private:
  // Block of the chunk and head, of the block's 16, that this thread shares in round i of the softmax.
  __device__ static int BlockOfRound(int i) { return i * (kQuads / AttentionSplit::kHeads) + Share::Head() / AttentionSplit::kHeads; }
  __device__ static int HeadOfRound() { return Share::Head() % AttentionSplit::kHeads; }

  // A chunk's values and scores on their way, as many as there is room for: what the list does not have is not used.
  __device__ bool Fetch(int first) {
    FetchValues(first);
    const float* score = split.Score(a, t, min(head0 + HeadOfRound(), a.heads - 1));
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const std::int64_t slot = (first + BlockOfRound(i)) * std::int64_t{kAttentionSlots};
      if (slot < split.slots) share[i].Load(score + slot);
    }
    return true;
  }

  __device__ void FetchValues(int first) {
    constexpr int kPieces = AttentionSplit::kChannels / 8;
    const std::int64_t slot0 = first * std::int64_t{kAttentionSlots};
    const int count = static_cast<int>(min(split.slots - slot0, std::int64_t{AttentionSplit::kChunk}));
#pragma unroll 4
    for (int i = threadIdx.x; i < count * kPieces; i += AttentionSplit::kValueThreads) {
      const int slot = i / kPieces, piece = i % kPieces * 8;
      CopyAsync<16>(s.value + slot * AttentionSplit::kValueStride + piece, split.Key(t, slot0 + slot) + channel0 + piece);
    }
    CommitCopies();
  }

  // Weights of the chunk's blocks, four threads a block and head.
  __device__ void Softmax(int first, int blocks) {
    const bool leader = Share::Part() == 0;
    const int head = HeadOfRound();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int b = BlockOfRound(i);
      if (b >= blocks) continue;
      share[i].Mask(list.Filled(first + b));
      const float top = share[i].Max();
      if (leader) s.max[b + 1][head] = top;
    }
    __syncthreads();
    if (threadIdx.x < AttentionSplit::kHeads) {
      for (int b = 1; b <= blocks; ++b) s.max[b][threadIdx.x] = fmaxf(s.max[b - 1][threadIdx.x], s.max[b][threadIdx.x]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int b = BlockOfRound(i);
      if (b >= blocks) continue;
      const float top = s.max[b + 1][head];
      share[i].Weigh(top);
      share[i].StoreBF16(s.weight + head * AttentionSplit::kWeightStride + b * kAttentionSlots);
      const float sum = share[i].Fold();
      if (leader) s.sum[b][head] = sum, s.rescale[b][head] = Rescale(s.max[b][head], top);
    }
  }

  // Denominator of a head; leaves the chunk's maximum for the next one.
  __device__ void Sum(int head, int blocks) {
    for (int b = 0; b < blocks; ++b) denominator = contract::Fma(denominator, s.rescale[b][head], s.sum[b][head]);
    s.max[0][head] = s.max[blocks][head];
  }

  __device__ void WeightedValues(int first, int blocks) {
    const int g = lane / 4;
    for (int b = 0; b < blocks; ++b) {
      const FilledSlots filled = list.Filled(first + b);
      const float factor0 = s.rescale[b][g], factor8 = s.rescale[b][g + 8];
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i / 4][i % 4] = contract::Mul(out[i / 4][i % 4], i % 4 < 2 ? factor0 : factor8);
#pragma unroll
      for (int k = 0; k < kAttentionSlots; k += 16) {
        if (!filled.AnyOf(k, 16)) continue;
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
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = i / 2, low = i % 2, head = g + 8 * low, channel = channel0 + 16 * warp + 8 * n + 2 * q;
      if (head0 + head >= a.heads || channel >= a.head_dim) continue;
      std::uint16_t* to = a.out_THD + (t * a.heads + head0 + head) * a.head_dim + channel;
      const std::uint32_t pair = TurnBack(a, list.row.position, channel, PackBF16(contract::Div(out[n][2 * low], s.divisor[head]), contract::Div(out[n][2 * low + 1], s.divisor[head])));
      if (a.head_dim % 2 == 0) {
        *reinterpret_cast<std::uint32_t*>(to) = pair;
      } else {
        to[0] = static_cast<std::uint16_t>(pair);
        if (channel + 1 < a.head_dim) to[1] = static_cast<std::uint16_t>(pair >> 16);
      }
    }
  }
};

__global__ void __launch_bounds__(AttentionSplit::kValueThreads, 2) AttentionValueKernel(const __grid_constant__ AttentionArgs a, AttentionSplit split) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  AttentionValues values(a, split, *reinterpret_cast<AttentionValues::Shared*>(memory));
  values.Run();
}

}  // namespace lockstep::kernels
