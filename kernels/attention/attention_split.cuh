// Attention of few rows, so that one row uses many processors: scores of 16 slots a block into memory, then the chain of blocks for 16 heads and
// 32 channels a block. Contract: docs/numerics.md section 6, Attention; ADR 0002 says why the chain may be cut like this.
#pragma once

#include "kernels/attention/attention_list.cuh"
#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

struct AttentionSplit {
  static constexpr int kHeads = 16;  // of a block
  static constexpr int kSlots = 16;  // of a score block
  static constexpr int kScoreThreads = 128, kHeadsOfScoreBlock = kScoreThreads / 32 * kHeads;
  static constexpr int kValueThreads = 256;
  static constexpr int kChannels = 32;  // of a value block
  static constexpr int kBlocks = 12;    // of 64 slots that a value block holds at a time: window and 512 selected rows
  static constexpr int kChunk = kBlocks * kAttentionSlots;
  static constexpr int kValueStride = kChannels + 8, kWeightStride = kChunk + 8;

  float* score;       // [rows][heads][slots]
  std::int64_t slots;  // room for every block of a row's list

  __device__ float* Score(const AttentionArgs& a, std::int64_t t, int head) const { return score + (t * a.heads + head) * slots; }
};

// Block: 16 slots (x), 64 heads (y), row (z).
__global__ void __launch_bounds__(AttentionSplit::kScoreThreads) AttentionScoreKernel(const __grid_constant__ AttentionArgs a, AttentionSplit split, float scale) {
  extern __shared__ __align__(16) std::byte memory[];
  auto* keys = reinterpret_cast<std::uint16_t*>(memory);  // [kSlots][stride]
  constexpr int kGroups = kAttentionSlots / AttentionSplit::kSlots;
  const std::int64_t t = blockIdx.z;
  const KeyList list(a, t);
  const int b = blockIdx.x / kGroups, slot0 = blockIdx.x % kGroups * AttentionSplit::kSlots;
  if (b >= list.blocks) return;
  const FilledSlots filled = list.Filled(b);
  if (!filled.AnyOf16(slot0)) return;
  const int padded = (a.head_dim + 15) / 16 * 16, stride = padded + 8;
  {
    constexpr int kThreadsPerSlot = AttentionSplit::kScoreThreads / AttentionSplit::kSlots;
    const int slot = threadIdx.x / kThreadsPerSlot, part = threadIdx.x % kThreadsPerSlot;
    const bool has = filled.Has(slot0 + slot);
    const std::byte* row = has ? list.Address(b, slot0 + slot) : nullptr;
    const RowFormat& format = list.IsWindow(b) ? a.window_format : a.compressed_format;
#pragma unroll 4
    for (int d = 8 * part; d < padded; d += 8 * kThreadsPerSlot) {
      *reinterpret_cast<uint4*>(keys + slot * stride + d) = has ? UnpackEight(format, row, d) : make_uint4(0u, 0u, 0u, 0u);
    }
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  const int head0 = static_cast<int>(blockIdx.y) * AttentionSplit::kHeadsOfScoreBlock + warp * AttentionSplit::kHeads;
  const auto query = [&](int head) { return a.q_THD + (t * a.heads + min(head, a.heads - 1)) * a.head_dim; };
  const std::uint16_t *row0 = query(head0 + g), *row8 = query(head0 + g + 8);
  float c[2][4] = {};
  constexpr int kAhead = 8;  // query fragments under way together
  for (int k0 = 0; k0 < padded; k0 += 16 * kAhead) {
    FragmentA fragment[kAhead];
    if (a.head_dim % (16 * kAhead) == 0) {
#pragma unroll
      for (int i = 0; i < 4 * kAhead; ++i) {
        fragment[i / 4].a[i % 4] = *reinterpret_cast<const std::uint32_t*>((i % 2 == 0 ? row0 : row8) + k0 + 16 * (i / 4) + i % 4 / 2 * 8 + 2 * q);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) fragment[i] = LoadA(row0, row8, k0 + 16 * i, a.head_dim);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (k0 + 16 * i >= padded) break;
      std::uint32_t key[4];
      LoadTileB(key, keys, stride, 0, k0 + 16 * i);
      MmaBF16(c[0], fragment[i], key[0], key[1]);
      MmaBF16(c[1], fragment[i], key[2], key[3]);
    }
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
  const int channel0, head0, warp, lane;
  const KeyList list;
  float denominator = 0.0f;  // thread h < 16: of head h
  float out[2][4] = {};      // warps 0 and 1: 16 heads x 16 channels

  __device__ AttentionValues(const AttentionArgs& args, const AttentionSplit& s_args, Shared& shared)
      : a(args), split(s_args), s(shared), t(blockIdx.z), channel0(static_cast<int>(blockIdx.x) * AttentionSplit::kChannels),
        head0(static_cast<int>(blockIdx.y) * AttentionSplit::kHeads), warp(threadIdx.x / 32), lane(threadIdx.x & 31), list(args, t) {}

  __device__ void Run() {
    if (threadIdx.x < AttentionSplit::kHeads) s.max[0][threadIdx.x] = NoScore();
    for (int first = 0; first < list.blocks; first += AttentionSplit::kBlocks) {
      const int blocks = min(AttentionSplit::kBlocks, list.blocks - first);
      GatherValues(first, blocks);
      Softmax(first, blocks);
      __syncthreads();
      if (warp < 2) WeightedValues(first, blocks);
      if (threadIdx.x >= 64 && threadIdx.x < 64 + AttentionSplit::kHeads) Sum(threadIdx.x - 64, blocks);
      __syncthreads();
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
  __device__ void GatherValues(int first, int blocks) {
#pragma unroll
    for (int i = 0; i < AttentionSplit::kChunk / AttentionSplit::kValueThreads; ++i) {
      const int at = threadIdx.x + i * AttentionSplit::kValueThreads, b = first + at / kAttentionSlots, slot = at % kAttentionSlots;
      if (at >= blocks * kAttentionSlots) continue;
      const bool has = list.Filled(b).Has(slot);
      const std::byte* row = has ? list.Address(b, slot) : nullptr;
      const RowFormat& format = list.IsWindow(b) ? a.window_format : a.compressed_format;
#pragma unroll
      for (int d = 0; d < AttentionSplit::kChannels; d += 8) {
        *reinterpret_cast<uint4*>(s.value + at * AttentionSplit::kValueStride + d) = has ? UnpackEight(format, row, channel0 + d) : make_uint4(0u, 0u, 0u, 0u);
      }
    }
  }

  // Weights of the chunk's blocks, four threads a block and head.
  __device__ void Softmax(int first, int blocks) {
    const int part = lane >> 3, quad = warp * 8 + (lane & 7), head = quad % AttentionSplit::kHeads;
    const float* score = split.Score(a, t, min(head0 + head, a.heads - 1));
    SlotShare share[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int b = i * (kQuads / AttentionSplit::kHeads) + quad / AttentionSplit::kHeads;
      if (b >= blocks) continue;
      LoadScores(score + (first + b) * kAttentionSlots, part, list.Filled(first + b), share[i]);
      const float top = Max64(share[i]);
      if (part == 0) s.max[b + 1][head] = top;
    }
    __syncthreads();
    if (threadIdx.x < AttentionSplit::kHeads) {
      for (int b = 1; b <= blocks; ++b) s.max[b][threadIdx.x] = fmaxf(s.max[b - 1][threadIdx.x], s.max[b][threadIdx.x]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int b = i * (kQuads / AttentionSplit::kHeads) + quad / AttentionSplit::kHeads;
      if (b >= blocks) continue;
      const float top = s.max[b + 1][head];
      WeighScores(top, share[i]);
      StoreWeights(share[i], part, s.weight + head * AttentionSplit::kWeightStride + b * kAttentionSlots);
      const float sum = Fold64(share[i]);
      if (part == 0) s.sum[b][head] = sum, s.rescale[b][head] = Rescale(s.max[b][head], top);
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
        if (!filled.AnyOf16(k)) continue;
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
    for (int i = 0; i < 8; ++i) {
      const int n = i / 4, head = g + (i % 4 < 2 ? 0 : 8), channel = channel0 + 16 * warp + 8 * n + 2 * q + i % 2;
      if (head0 + head >= a.heads || channel >= a.head_dim) continue;
      a.out_THD[(t * a.heads + head0 + head) * a.head_dim + channel] = BF16Bits(contract::Div(out[n][i % 4], s.divisor[head]));
    }
  }
};

__global__ void __launch_bounds__(AttentionSplit::kValueThreads, 2) AttentionValueKernel(const __grid_constant__ AttentionArgs a, AttentionSplit split) {
  extern __shared__ __align__(16) std::byte memory[];
  AttentionValues values(a, split, *reinterpret_cast<AttentionValues::Shared*>(memory));
  values.Run();
}

}  // namespace lockstep::kernels
