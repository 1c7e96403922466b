// Index queries on their way to the tensor cores. Contract: docs/numerics.md section 5, index queries.
#pragma once

#include "kernels/device/dots.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/index_select/index_select.h"
#include "kernels/index_select/index_team_row.cuh"
#include "kernels/kv_rows/kv_codec.cuh"

namespace lockstep::kernels {

inline constexpr int kIndexQuantizerBlock = 32;

// Scales with which products, and products of two, stay far from the ends of fp32: 2^-60 .. 2^60.
__device__ inline bool IsUsualScale(unsigned exponent) { return exponent - 67u <= 120u; }
// What the values of a block are multiplied by in advance, exactly.
__device__ inline __nv_bfloat162 ScaleInValues(unsigned exponent) { return __float2bfloat162_rn(IsUsualScale(exponent) ? PowerOfExponent(exponent) : 1.0f); }

// A prepared query: A fragments of its E2M1 values as bf16, times their block's scale where that is a usual one, scales [heads][blocks], weights [heads]; heads in
// tiles of 16, and what pads them has scales of 1. Channels of a block, whose sum is exact in any order, lie so that a thread has eight neighbouring ones of a
// head: a key's are then a word of its packed row.
template <int kBlocks, int kHeadTiles>
struct IndexQuery {
  static constexpr int kSteps = 2 * kBlocks, kPaddedHeads = 16 * kHeadTiles;
  struct alignas(4 * kBlocks) Scales {
    float of[kBlocks];
  };
  uint4 fragment[kHeadTiles][kSteps][32];
  Scales scale[kPaddedHeads];
  float weight[kPaddedHeads];

  // The word of channels d and d + 1 of a head, d even.
  __device__ unsigned& Word(int head, int d) {
    const int row = head % 16, lane = row % 8 * 4 + d % 32 / 8, pair = d % 8 / 2, element = (row < 8 ? 0 : 1) + pair % 2 * 2;
    return reinterpret_cast<unsigned*>(&fragment[head / 16][d / 32 * 2 + pair / 2][lane])[element];
  }
  __device__ void SetWeight(const IndexSelectArgs& a, std::int64_t t, int head, float weight_scale) {
    weight[head] = head < a.heads ? contract::Mul(BF16Value(a.weight_TH[t * a.heads + head]), weight_scale) : 0.0f;
  }
};

// By all threads of blocks (head, row): a row's memory, if its blocks choose together.
__device__ inline void ClearTeamRow(TeamRow* team) {
  if (team) team[blockIdx.y].ClearShare(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), static_cast<int>(gridDim.x * blockDim.x));
}

// Block (head, row).
template <int kBlocks, int kHeadTiles>
__global__ void PrepareIndexQueryKernel(const __grid_constant__ IndexSelectArgs a, float hadamard_scale, float weight_scale,
                                        IndexQuery<kBlocks, kHeadTiles>* queries, TeamRow* team) {
  WaitForKernelsBefore();
  StartNextKernel();  // which may read all that is not made here
  ClearTeamRow(team);
  constexpr int kDim = kBlocks * kIndexQuantizerBlock;
  __shared__ float x[kDim];
  __shared__ std::uint8_t codes[kDim], scales[kBlocks];
  const int h = blockIdx.x;
  const std::int64_t t = blockIdx.y;
  IndexQuery<kBlocks, kHeadTiles>& query = queries[t];
  for (int d = threadIdx.x; d < kDim; d += blockDim.x) {
    x[d] = h < a.heads && d < a.dim ? BF16Value(a.q_THI[(t * a.heads + h) * a.dim + d]) : 0.0f;
    codes[d] = 0;
    if (d < kBlocks) scales[d] = 127;
  }
  __syncthreads();
  if (a.key_format.kind == RowFormat::Kind::kHadamardFp4) HadamardBlock(x, a.dim, hadamard_scale);
  if (h < a.heads) QuantizeBlocks(a.key_format, x, codes, scales);
  __syncthreads();
  for (int d = 2 * threadIdx.x; d < kDim; d += 2 * blockDim.x) {
    query.Word(h, d) = ScaledFp4(codes[d] | codes[d + 1] << 4, ScaleInValues(scales[d / kIndexQuantizerBlock])).x;
  }
  if (threadIdx.x < kBlocks) query.scale[h].of[threadIdx.x] = PowerOfExponent(scales[threadIdx.x]);
  if (threadIdx.x == 0) query.SetWeight(a, t, h, weight_scale);
}

// Strides 1, 2, ..., 64 over 128 channels of which a lane has four neighbours, times `scale`, rounded to bf16.
__device__ inline void HadamardWarp(float (&x)[4], float scale) {
  using contract::Add, contract::Sub;
  const float a = Add(x[0], x[1]), b = Sub(x[0], x[1]), c = Add(x[2], x[3]), d = Sub(x[2], x[3]);
  x[0] = Add(a, c), x[1] = Add(b, d), x[2] = Sub(a, c), x[3] = Sub(b, d);
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const bool second = threadIdx.x & lanes;
#pragma unroll
    for (float& own : x) {
      const float other = __shfl_xor_sync(0xffffffffu, own, lanes);
      own = second ? Sub(other, own) : Add(own, other);
    }
  }
#pragma unroll
  for (float& own : x) own = BF16Value(BF16Bits(contract::Mul(own, scale)));
}

// A head of 128 channels by a warp, four neighbouring ones a lane: their FP4 codes, and the exponent of the scale of their quantizer block.
struct HeadCodes {
  unsigned codes = 0, exponent;

  // This lane's channels of a head; zero past the last head.
  __device__ static uint2 Read(const IndexSelectArgs& a, std::int64_t t, int head) {
    return head < a.heads ? *reinterpret_cast<const uint2*>(a.q_THI + (t * a.heads + head) * a.dim + 4 * (threadIdx.x & 31)) : make_uint2(0u, 0u);
  }
  __device__ HeadCodes(const IndexSelectArgs& a, std::int64_t t, int head, float hadamard_scale) : HeadCodes(a, Read(a, t, head), hadamard_scale) {}
  __device__ HeadCodes(const IndexSelectArgs& a, uint2 bits, float hadamard_scale) {
    const float4 wide = WidenFour(bits);
    float x[4] = {wide.x, wide.y, wide.z, wide.w};
    if (a.key_format.kind == RowFormat::Kind::kHadamardFp4) HadamardWarp(x, hadamard_scale);
    float top = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));
    exponent = Fp4Exponent(top);
#pragma unroll
    for (int i = 0; i < 4; ++i) codes |= E2M1Code(fmaxf(fminf(contract::Div(x[i], PowerOfExponent(exponent)), 6.0f), -6.0f)) << (4 * i);
  }
};

// The same as PrepareIndexQueryKernel for heads of 128 channels: block (head, row) of a warp. It runs once on zeros while it waits, so that its instructions
// are there.
template <int kHeadTiles>
__global__ void __launch_bounds__(32) PrepareWholeHeadKernel(const __grid_constant__ IndexSelectArgs a, float hadamard_scale, float weight_scale, IndexQuery<4, kHeadTiles>* queries, TeamRow* team) {
  const int h = blockIdx.x, lane = threadIdx.x;
  const std::int64_t t = blockIdx.y;
  IndexQuery<4, kHeadTiles>& query = queries[t];
  uint2 bits = make_uint2(0u, 0u);
#pragma unroll 1
  for (int real = 0; real < 2; ++real) {
    if (real) {
      WaitForKernelsBefore();
      StartNextKernel();  // which may read all that is not made here
      bits = HeadCodes::Read(a, t, h);
      ClearTeamRow(team);
      if (lane == 0) query.SetWeight(a, t, h, weight_scale);
    }
    const HeadCodes head(a, bits, hadamard_scale);
    const unsigned exponent = h < a.heads ? head.exponent : 127u;
    const uint2 values = ScaledFp4(head.codes, ScaleInValues(exponent));
    if (!real) continue;
    query.Word(h, 4 * lane) = values.x;
    query.Word(h, 4 * lane + 2) = values.y;
    if (lane % 8 == 0) query.scale[h].of[lane / 8] = PowerOfExponent(exponent);
  }
}

}  // namespace lockstep::kernels
