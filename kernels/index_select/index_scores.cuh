// Index scores. FP4 keys: the products of a 32-channel block are exact in the tensor cores (multiples of 1/4 below 1152), whatever their order; a warp
// keeps a query's heads in registers and streams keys past them. Contract: docs/numerics.md section 6, Index score.
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
  __device__ std::int64_t Number(std::int64_t i) const { return blocks ? std::int64_t{blocks[i / block_size]} * block_size + i % block_size : i; }
  __device__ const std::byte* Key(std::int64_t i) const {
    const std::int64_t j = Number(i);
    return keys.pages[j >> keys.page_shift] + (j & ((std::int64_t{1} << keys.page_shift) - 1)) * keys.row_bytes;
  }
};

// relu(dot) * weight of a head.
__device__ inline float HeadPart(float dot, float weight) { return contract::Mul(dot > 0.0f ? dot : 0.0f, weight); }

// Scores of a stretch of keys for one row by all warps.
template <int kBlocks, int kHeadTiles>
struct IndexScoreTile {
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kKeys = 128;  // in shared memory together
  static constexpr int kDim = kBlocks * kIndexQuantizerBlock, kStride = kDim + 8;
  static constexpr int kWords = kDim / 16;  // of the codes that a thread unpacks: half a key
  using Query = IndexQuery<kBlocks, kHeadTiles>;

  struct Shared {
    std::uint16_t key[2][kKeys * kStride];
    float scale[2][kKeys][kBlocks];
  };

  const IndexSelectArgs& a;
  Shared& s;
  const int warp, lane;
  FragmentA fragment[kHeadTiles][2 * kBlocks];
  float query_scale[kHeadTiles][2][kBlocks], weight[kHeadTiles][2];
  // This thread's half key of the next tile.
  unsigned words[kWords];
  unsigned scale_bytes;

  __device__ IndexScoreTile(const IndexSelectArgs& args, Shared& shared) : a(args), s(shared), warp(threadIdx.x / 32), lane(threadIdx.x & 31) {}

  __device__ void LoadQuery(const Query& query) {
    const int g = lane / 4;
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
      for (int k = 0; k < 2 * kBlocks; ++k) *reinterpret_cast<uint4*>(fragment[m][k].a) = query.fragment[m][k][lane];
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int head = 16 * m + 8 * low + g;
        weight[m][low] = query.weight[head];
        const typename Query::Scales scales = query.scale[head];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) query_scale[m][low][b] = scales.of[b];
      }
    }
  }

  // Loads the packed half key that this thread will unpack; keys from `end` on are zero.
  __device__ void Fetch(const IndexEntries& entries, std::int64_t first, std::int64_t end) {
    const std::int64_t i = first + threadIdx.x / 2;
    const int half = threadIdx.x % 2;
    const auto* row = i < end ? reinterpret_cast<const std::uint8_t*>(entries.Key(i)) : nullptr;
    scale_bytes = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int d = (half * kWords + w) * 8;
      words[w] = row && d < a.dim ? reinterpret_cast<const unsigned*>(row)[d / 8] : 0u;
      if (a.dim - d < 8 && d < a.dim) words[w] &= (1u << 4 * (a.dim - d)) - 1u;  // what follows the codes are scales
    }
    if (!row || half != 0) return;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b * kIndexQuantizerBlock < a.dim) scale_bytes |= static_cast<unsigned>(row[(a.dim + 1) / 2 + b]) << (8 * b);
    }
  }

  __device__ void Unpack(int buffer) {
    const int key = threadIdx.x / 2, half = threadIdx.x % 2;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint2 low = Fp4Values(words[w] & 0xffffu), high = Fp4Values(words[w] >> 16);
      *reinterpret_cast<uint4*>(s.key[buffer] + key * kStride + (half * kWords + w) * 8) = make_uint4(low.x, low.y, high.x, high.y);
    }
    if (half != 0) return;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) s.scale[buffer][key][b] = PowerOfExponent((scale_bytes >> (8 * b)) & 0xffu);
  }

  // Scores of eight keys; every lane of a column's group has them: keys 2q and 2q+1 of the tile.
  __device__ float2 ScoreEight(int buffer, int key0) const {
    const int q = lane & 3;
    float key_scale[2][kBlocks];
    std::uint32_t b[kBlocks][4];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      LoadMatrices(b[i], s.key[buffer] + (key0 + (lane & 7)) * kStride + i * kIndexQuantizerBlock + (lane >> 3) * 8);
      key_scale[0][i] = s.scale[buffer][key0 + 2 * q][i];
      key_scale[1][i] = s.scale[buffer][key0 + 2 * q + 1][i];
    }
    float part[kHeadTiles][4];
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
      float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        MmaBF16(sum, fragment[m][2 * i], b[i][0], b[i][1]);
        MmaBF16(sum, fragment[m][2 * i + 1], b[i][2], b[i][3]);
#pragma unroll
        for (int c = 0; c < 4; ++c) dot[c] = contract::Fma(sum[c], contract::Mul(query_scale[m][c / 2][i], key_scale[c % 2][i]), dot[c]);
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
      sum[c] = a.heads > 8 ? contract::Add(part[0][c], part[0][c + 2]) : part[0][c];
#pragma unroll
      for (int stride = 4; stride > 0; stride /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, sum[c], 4 * stride);
        if (a.heads > stride) sum[c] = contract::Add(sum[c], other);
      }
    }
    return make_float2(sum[0], sum[1]);
  }

  __device__ void Store(float2 score, std::int64_t first, std::int64_t count, float* scores) const {
    const std::int64_t i = first + 2 * (lane & 3);
    if (lane >= 4) return;
    if (i < count) scores[i] = score.x;
    if (i + 1 < count) scores[i + 1] = score.y;
  }

  // Of keys [begin, end) of `entries`, those that do not need the query yet.
  __device__ void Begin(const IndexEntries& entries, std::int64_t begin, std::int64_t end) {
    Fetch(entries, begin, end);
    Unpack(0);
  }
  // Those keys, which have begun: a warp every eighth group of eight.
  __device__ void Stream(const IndexEntries& entries, std::int64_t begin, std::int64_t end, float* scores) {
    int buffer = 0;
    for (std::int64_t tile = begin; tile < end; tile += kKeys, buffer ^= 1) {
      if (tile > begin) Unpack(buffer);
      __syncthreads();
      if (tile + kKeys < end) Fetch(entries, tile + kKeys, end);
      for (int group = warp; group < kKeys / 8 && tile + 8 * group < end; group += kWarps) Store(ScoreEight(buffer, 8 * group), tile + 8 * group, end, scores);
    }
  }
};

// Block: `keys` keys (x) of one row (y). The kernel before prepares the query and has waited for all others: keys may be read before it ends.
template <int kBlocks, int kHeadTiles>
__global__ void __launch_bounds__(256, 1) ScoreRowKernel(const __grid_constant__ IndexSelectArgs a, const IndexQuery<kBlocks, kHeadTiles>* queries, std::int64_t keys,
                                                         float* scores, std::int64_t stride) {
  StartNextKernel();
  using Tile = IndexScoreTile<kBlocks, kHeadTiles>;
  extern __shared__ __align__(16) std::byte memory[];
  const std::int64_t t = blockIdx.y, begin = blockIdx.x * keys;
  const IndexEntries entries(a, t);
  const std::int64_t end = min(begin + keys, entries.count);
  Tile tile(a, *reinterpret_cast<typename Tile::Shared*>(memory));
  if (begin < end) tile.Begin(entries, begin, end);
  WaitForKernelsBefore();
  if (begin >= end) return;
  tile.LoadQuery(queries[t]);
  tile.Stream(entries, begin, end, scores + t * stride);
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
