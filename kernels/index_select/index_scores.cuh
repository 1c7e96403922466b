// Index scores. FP4 keys: the products of a 32-channel block are exact in the tensor cores (multiples of 1/4 below 1152), whatever their order; a warp
// keeps a query's heads in registers and streams keys past them, from packed rows to the tensor cores. Contract: docs/numerics.md section 6, Index score.
#pragma once

#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/index_select/index_query.cuh"
#include "kernels/kv_rows/kv_codec.cuh"

namespace lockstep::kernels {

// Entries of row t that may be chosen, in ascending order: the visible ones, or those of the kept candidate blocks.
struct IndexEntries {
  PagedRows keys;
  std::int64_t visible;
  const std::int32_t* blocks;  // null: every visible entry
  int block_size;
  std::int64_t count;

  __device__ IndexEntries(const IndexSelectArgs& a, std::int64_t t)
      : keys(a.row_T[t].keys), visible(a.row_T[t].visible), blocks(a.candidates_in ? a.candidates_in + t * a.candidate_top_blocks : nullptr),
        block_size(a.candidate_block), count(visible) {
    if (!blocks) return;
    const int kept = a.candidate_count_in[t];
    count = kept > 0 ? (kept - 1) * std::int64_t{block_size} + min(std::int64_t{block_size}, visible - std::int64_t{blocks[kept - 1]} * block_size) : 0;
  }

  // Entry number of the i-th.
  template <class Int>
  __device__ Int Number(Int i) const {
    return blocks ? Int{blocks[i / block_size]} * block_size + i % block_size : i;
  }
  template <class Int>
  __device__ const std::byte* Key(Int i) const {
    const Int j = Number(i), row = j & ((Int{1} << keys.page_shift) - 1);
    return keys.pages[j >> keys.page_shift] + std::int64_t{row} * keys.row_bytes;
  }
};

// relu(dot) * weight of a head.
__device__ inline float HeadPart(float dot, float weight) { return contract::Mul(fmaxf(dot, 0.0f), weight); }

// Scores of one row's keys by a warp, eight at a time: lane 4 g + q has, of key g, the eight channels 8 q and following of every block.
template <int kBlocks, int kHeadTiles>
struct IndexScoreWarp {
  static constexpr int kKeys = 8;
  using Query = IndexQuery<kBlocks, kHeadTiles>;
  struct Keys {
    unsigned word[kBlocks];
    unsigned scales;
  };

  const IndexSelectArgs& a;
  const int lane;
  const Query* query = nullptr;
  bool usual = false;  // all its scales are, and so in its values
  const Fp4Bytes bytes;
  FragmentA fragment[kHeadTiles][2 * kBlocks];
  float weight[kHeadTiles][2];

  __device__ explicit IndexScoreWarp(const IndexSelectArgs& args) : a(args), lane(threadIdx.x & 31) {}

  __device__ void LoadQuery(const Query& prepared) {
    query = &prepared;
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
      for (int k = 0; k < 2 * kBlocks; ++k) *reinterpret_cast<uint4*>(fragment[m][k].a) = query->fragment[m][k][lane];
#pragma unroll
      for (int low = 0; low < 2; ++low) weight[m][low] = query->weight[16 * m + 8 * low + lane / 4];
    }
    bool all = true;
#pragma unroll
    for (int head = 0; head < Query::kPaddedHeads; head += 32) {
      const typename Query::Scales scales = query->scale[(head + lane) % Query::kPaddedHeads];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) all = all && IsUsualScale(__float_as_uint(scales.of[b]) >> 23);
    }
    usual = __all_sync(0xffffffffu, all);
  }

  // The row of this lane's key of the eight from `first` on; past the end the last one.
  __device__ const std::byte* Row(const IndexEntries& entries, int first) const { return entries.Key(min(first + lane / 4, static_cast<int>(entries.count) - 1)); }

  // What follows the channels does not matter: a query is zero there.
  __device__ Keys Read(const std::byte* row) const {
    Keys keys{};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int d = b * kIndexQuantizerBlock + 8 * (lane & 3);
      if (d < a.dim) keys.word[b] = *reinterpret_cast<const unsigned*>(row + d / 2);
    }
    const auto* scales = reinterpret_cast<const std::uint8_t*>(row) + (a.dim + 1) / 2;
    if (kBlocks == 4 && a.dim == 128) {
      keys.scales = *reinterpret_cast<const unsigned*>(scales);
    } else {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        keys.scales |= (b * kIndexQuantizerBlock < a.dim ? static_cast<unsigned>(scales[b]) : 127u) << (8 * b);
      }
    }
    return keys;
  }

  // Every lane of a column's group has the scores of keys 2q and 2q + 1.
  __device__ float2 Score(const Keys& keys) const {
    constexpr unsigned kTop = 0x80808080u >> (32 - 8 * kBlocks);
    const bool keys_usual = ((keys.scales ^ keys.scales << 1) & kTop) == kTop;  // 2^-63 .. 2^64: the exponents' two top bits differ
    return usual && __all_sync(0xffffffffu, keys_usual) ? ScoreWith<true>(keys) : ScoreWith<false>(keys);
  }

  // `kScaled`: the query's scales are in the sums, and their products with the keys' would be exact. Else the product of both as it rounds.
  template <bool kScaled>
  __device__ float Scaled(float sum, int head, int block, float key_scale, float dot) const {
    if constexpr (kScaled) return contract::Fma(sum, key_scale, dot);
    const float scale = query->scale[head].of[block];
    const float codes = IsUsualScale(__float_as_uint(scale) >> 23) ? contract::Mul(sum, __uint_as_float(0x7f000000u - __float_as_uint(scale))) : sum;
    return contract::Fma(codes, contract::Mul(scale, key_scale), dot);
  }

  template <bool kScaled>
  __device__ float2 ScoreWith(const Keys& keys) const {
    float key_scale[2][kBlocks];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const unsigned scales = __shfl_sync(0xffffffffu, keys.scales, 4 * (2 * (lane & 3) + odd));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) key_scale[odd][b] = PowerOfExponent((scales >> (8 * b)) & 0xffu);
    }
    uint2 values[2 * kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) values[2 * b] = bytes.Values(keys.word[b]), values[2 * b + 1] = bytes.Values(keys.word[b] >> 16);
    float part[kHeadTiles][4];
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
      float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int k = 2 * b; k < 2 * b + 2; ++k) MmaBF16(sum, fragment[m][k], values[k].x, values[k].y);
#pragma unroll
        for (int c = 0; c < 4; ++c) dot[c] = Scaled<kScaled>(sum[c], 16 * m + 8 * (c / 2) + lane / 4, b, key_scale[c % 2][b], dot[c]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) part[m][c] = HeadPart(dot[c], weight[m][c / 2]);
    }
    return FoldHeads(part);
  }

  // fold over the heads, padded with +0 to a power of two: tiles 32 and 16 apart, rows 8 apart, then lanes.
  __device__ float2 FoldHeads(float (&part)[kHeadTiles][4]) const {
#pragma unroll
    for (int apart = kHeadTiles / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int m = 0; m < apart; ++m) {
#pragma unroll
        for (int c = 0; c < 4; ++c) part[m][c] = contract::Add(part[m][c], part[m + apart][c]);
      }
    }
    float sum[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sum[c] = kHeadTiles > 1 || a.heads > 8 ? contract::Add(part[0][c], part[0][c + 2]) : part[0][c];
#pragma unroll
      for (int stride = 4; stride > 0; stride /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, sum[c], 4 * stride);
        if (kHeadTiles > 1 || a.heads > stride) sum[c] = contract::Add(sum[c], other);
      }
    }
    return make_float2(sum[0], sum[1]);
  }
};

// By a warp: scores of the entries from `first` and, in steps of `step`, up to `end`, eight at a time, to store(Score's, the first of the eight). The kernel
// before prepares the query and has waited for all others: keys may be read before it ends. The next eight are on their way meanwhile, and the address of those
// behind them.
template <int kBlocks, int kHeadTiles, class Store>
__device__ void ScoreInTurn(const IndexSelectArgs& a, const IndexEntries& entries, const IndexQuery<kBlocks, kHeadTiles>& query, int first, int step, int end,
                            const Store& store) {
  using Warp = IndexScoreWarp<kBlocks, kHeadTiles>;
  Warp warp(a);
  if (first >= end) return WaitForKernelsBefore();
  typename Warp::Keys keys = warp.Read(warp.Row(entries, first)), next = warp.Read(warp.Row(entries, first + step));
  const std::byte* row = warp.Row(entries, first + 2 * step);
  WaitForKernelsBefore();
  warp.LoadQuery(query);
#pragma unroll 1
  while (true) {
    store(warp.Score(keys), first);
    first += step;
    if (first >= end) return;
    keys = next;
    next = warp.Read(row);
    row = warp.Row(entries, first + 2 * step);
  }
}

// Warps of all blocks (x) take eight keys of a row (y) in turn.
template <int kBlocks, int kHeadTiles>
__global__ void __launch_bounds__(256, 1) ScoreRowKernel(const __grid_constant__ IndexSelectArgs a, const IndexQuery<kBlocks, kHeadTiles>* queries, float* scores, std::int64_t stride) {
  StartNextKernel();
  constexpr int kKeys = IndexScoreWarp<kBlocks, kHeadTiles>::kKeys;
  const std::int64_t t = blockIdx.y;
  const int warps = static_cast<int>(blockDim.x / 32), step = warps * static_cast<int>(gridDim.x) * kKeys;
  const int first = static_cast<int>(blockIdx.x * warps + threadIdx.x / 32) * kKeys, lane = threadIdx.x & 31;
  const IndexEntries entries(a, t);
  const int count = static_cast<int>(entries.count);
  float* row = scores + t * stride;
  ScoreInTurn(a, entries, queries[t], first, step, count, [&](float2 score, int from) {
    const int i = from + 2 * lane;
    if (lane >= 4) return;
    if (i < count) row[i] = score.x;
    if (i + 1 < count) row[i + 1] = score.y;
  });
}

// Unquantized keys: a warp 8 keys, 16 heads at a time through the tensor cores.
inline constexpr int kMaxBf16Heads = 128;

__global__ void ScoreBf16Kernel(const __grid_constant__ IndexSelectArgs a, float weight_scale, float* scores, std::int64_t stride) {
  BeginKernel();
  __shared__ float part[8][kMaxBf16Heads + 1];
  const std::int64_t t = blockIdx.y, begin = blockIdx.x * std::int64_t{8};
  const IndexEntries entries(a, t);
  if (begin >= entries.count) return;
  const int lane = threadIdx.x, g = lane / 4, q = lane & 3;
  const auto* key = begin + g < entries.count ? reinterpret_cast<const std::uint16_t*>(entries.Key(begin + g)) : nullptr;
  for (int h0 = 0; h0 < a.heads; h0 += 16) {
    const auto head = [&](int h) { return h < a.heads ? a.q_THI + (t * a.heads + h) * a.dim : nullptr; };
    float c[4] = {};
    for (int k = 0; k < a.dim; k += 16) {
      const FragmentA fragment = LoadA(head(h0 + g), head(h0 + g + 8), k, a.dim);
      MmaBF16(c, fragment, key ? LoadPair(key, k + 2 * q, a.dim) : 0u, key ? LoadPair(key, k + 2 * q + 8, a.dim) : 0u);
    }
    for (int i = 0; i < 4; ++i) {
      const int h = h0 + g + (i < 2 ? 0 : 8);
      if (h < a.heads) part[2 * q + (i & 1)][h] = HeadPart(c[i], contract::Mul(BF16Value(a.weight_TH[t * a.heads + h]), weight_scale));
    }
  }
  __syncwarp();
  if (lane >= 8 || begin + lane >= entries.count) return;
  float* x = part[lane];
  int width = 1, heads = a.heads;
  while (width < heads) width *= 2;
  for (int apart = width / 2; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) x[i] = contract::Add(x[i], i + apart < heads ? x[i + apart] : 0.0f);
    heads = apart;
  }
  scores[t * stride + begin + lane] = x[0];
}

}  // namespace lockstep::kernels
