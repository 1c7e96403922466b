// Queries of the indexer as the columns of products with many keys. Contract: docs/numerics.md sections 5 and 6, Index score.
#pragma once

#include "kernels/index_select/index_query.cuh"

namespace lockstep::kernels {

// A query of 128 channels as B operand. Column of head h: 8 (h / 8) + 2 (h % 4) + h / 4 % 2, so that thread q of a quad has the heads 4 m + q. Channels of a
// 32-block lie so that the eight of a word of codes are a thread's share of two k16 steps: the order within a block is free, its sum is exact.
template <int kHeads>
struct WideQuery {
  static constexpr int kBlocks = 4, kTileBytes = kHeads * 128;  // [heads][64 channels], permuted like SwizzledDescriptor's
  uint4 value[2 * kTileBytes / 16];  // bf16, times the block's scale where that is a usual one
  float weight[4][kHeads / 4];       // of head 4 m + q in [q][m]
  float scale[kHeads][kBlocks];
  unsigned usual;  // whether all scales are

  // Where the word of channels k and k + 1 of a step lies.
  __device__ static int Place(int column, int step, int k) {
    const int chunk = 2 * (step % 4) + k / 8;
    return step / 4 * kTileBytes + column * 128 + (chunk ^ column % 8) * 16 + k % 8 * 2;
  }
  __device__ static int Column(int head) { return head / 8 * 8 + head % 4 * 2 + head / 4 % 2; }
};

// Block: a row; a warp a head at a time, a lane four neighbouring channels of it.
template <int kHeads>
__global__ void __launch_bounds__(256) PrepareWideQueryKernel(const __grid_constant__ IndexSelectArgs a, float hadamard_scale, float weight_scale, WideQuery<kHeads>* queries) {
  BeginKernel();
  constexpr int kWarps = 256 / 32;
  const std::int64_t t = blockIdx.x;
  WideQuery<kHeads>& query = queries[t];
  const int lane = threadIdx.x & 31, block = lane / 8, step = 2 * block + lane % 2, k = lane % 8 / 2 * 2;
  bool usual = true;
#pragma unroll 2
  for (int h = threadIdx.x / 32; h < kHeads; h += kWarps) {
    const HeadCodes head(a, t, h, hadamard_scale);
    const float scale = PowerOfExponent(head.exponent);
    const bool own_usual = IsUsualScale(head.exponent);
    const uint2 values = ScaledFp4(head.codes, __float2bfloat162_rn(own_usual ? scale : 1.0f));
    auto* to = reinterpret_cast<std::byte*>(query.value);
    *reinterpret_cast<unsigned*>(to + WideQuery<kHeads>::Place(WideQuery<kHeads>::Column(h), step, k)) = values.x;
    *reinterpret_cast<unsigned*>(to + WideQuery<kHeads>::Place(WideQuery<kHeads>::Column(h), step, k + 8)) = values.y;
    if (lane % 8 == 0) query.scale[h][block] = scale;
    usual = usual && (own_usual || h >= a.heads);
  }
  usual = __syncthreads_and(usual);
  if (threadIdx.x == 0) query.usual = usual;
  for (int h = threadIdx.x; h < kHeads; h += 256) query.weight[h % 4][h / 4] = h < a.heads ? contract::Mul(BF16Value(a.weight_TH[t * a.heads + h]), weight_scale) : 0.0f;
}

}  // namespace lockstep::kernels
