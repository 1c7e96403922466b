// The m16n8k16 product on sm_70: m8n8k4 steps, whose fragments lie elsewhere, with fp16 operands; bf16 in software. Later devices translate
// m8n8k4 to fp32 arithmetic (profile sm70jit).
#pragma once

#include <cstdint>

#include "kernels/linear/mma_fragments.cuh"
#include "kernels/linear/mma_software.cuh"

namespace lockstep::kernels {

// Four independent 8x8x4 products, one a quad pair p = lane/4 % 4. Row of A and column of B: lane % 4 + 4 * (lane / 16). C[i]: row
// lane % 2 + i & 2 + 4 * (lane / 16), column i & 4 + lane & 2 + i & 1.
__device__ inline void MmaM8N8K4(float (&c)[8], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%0,%1,%2,%3,%4,%5,%6,%7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

// Quad pairs 0 and 2 compute rows 0..7 of the product, 1 and 3 rows 8..15, each over all 16 inputs in ascending blocks of 4.
struct Volta {
  static constexpr unsigned kAll = 0xffffffffu;
  int lane = threadIdx.x & 31;
  bool lower = lane / 4 % 2 != 0;  // rows 8..15
  int line = lane % 4 + 4 * (lane / 16);

  // A value that lane `from` holds in x0 for the upper rows and in x1 for the lower.
  template <class T>
  __device__ T Pick(T x0, T x1, int from) const {
    const T upper_value = __shfl_sync(kAll, x0, from), lower_value = __shfl_sync(kAll, x1, from);
    return lower ? lower_value : upper_value;
  }

  __device__ void FromTile(const float (&tile)[4], float (&c)[8]) const {
    for (int i = 0; i < 8; i += 2) {
      const int row = lane % 2 + (i & 2) + 4 * (lane / 16), column = (i & 4) + (lane & 2);
      c[i] = Pick(tile[0], tile[2], 4 * row + column / 2);
      c[i + 1] = Pick(tile[1], tile[3], 4 * row + column / 2);
    }
  }

  __device__ void ToTile(const float (&c)[8], float (&tile)[4]) const {
    const int g = lane / 4, q = lane % 4;
    for (int j = 0; j < 4; ++j) {
      const int from = 4 * (j / 2) + (g & 1) + (2 * q & 2) + 16 * (g / 4);
      float value = 0.0f;
      for (int high = 0; high < 8; high += 2) {
        const float candidate = __shfl_sync(kAll, c[high + j % 2], from);
        if (high == (g & 2) + (2 * q & 4)) value = candidate;
      }
      tile[j] = value;
    }
  }

  __device__ void Multiply(float (&c)[8], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) const {
    for (int block = 0; block < 4; ++block) {
      const bool second_half = block >= 2;
      const std::uint32_t x0 = second_half ? a.a[2] : a.a[0], x1 = second_half ? a.a[3] : a.a[1], y = second_half ? b1 : b0;
      const int from = 4 * line + 2 * (block % 2);
      const std::uint32_t first_a = Pick(x0, x1, from), second_a = Pick(x0, x1, from + 1);
      const std::uint32_t first_b = __shfl_sync(kAll, y, from), second_b = __shfl_sync(kAll, y, from + 1);
      MmaM8N8K4(c, first_a, second_a, first_b, second_b);
    }
  }
};

// Not inlined: it is large, and callers have many products.
static __device__ __noinline__ float4 MmaF16Call(float4 sum, FragmentA a, std::uint32_t b0, std::uint32_t b1) {
  const Volta volta;
  float tile[4] = {sum.x, sum.y, sum.z, sum.w}, sums[8];
  volta.FromTile(tile, sums);
  volta.Multiply(sums, a, b0, b1);
  volta.ToTile(sums, tile);
  return make_float4(tile[0], tile[1], tile[2], tile[3]);
}

__device__ inline void MmaF16(float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
  const float4 sum = MmaF16Call(make_float4(c[0], c[1], c[2], c[3]), a, b0, b1);
  c[0] = sum.x, c[1] = sum.y, c[2] = sum.z, c[3] = sum.w;
}

// Whether the device computes m8n8k4 in fp32 arithmetic: 1 + 1.5 * 2^-24 is 1 by the tensor core's rule and rounds up in fp32.
__device__ inline bool IsTranslated() {
  constexpr std::uint32_t kTwoToMinus12 = 0x0c00, kOneAndAHalfOfIt = 0x0e00;  // fp16
  float c[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  MmaM8N8K4(c, kTwoToMinus12, 0u, kOneAndAHalfOfIt, 0u);
  return c[0] != 1.0f;
}

static __device__ __noinline__ float4 MmaBF16Call(float4 sum, FragmentA a, std::uint32_t b0, std::uint32_t b1) {
  float c[4] = {sum.x, sum.y, sum.z, sum.w};
  const bool translated = IsTranslated();
  MmaBF16Software<4>(c, a, b0, b1, [translated](float value, const contract::MmaOperand* x, const contract::MmaOperand* y) {
    return translated ? contract::MmaBlockSm70Jit(value, x, y) : contract::MmaBlock(contract::MmaRuleOf(Profile::kSm70), value, x, y);
  });
  return make_float4(c[0], c[1], c[2], c[3]);
}

__device__ inline void MmaBF16(float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
  const float4 sum = MmaBF16Call(make_float4(c[0], c[1], c[2], c[3]), a, b0, b1);
  c[0] = sum.x, c[1] = sum.y, c[2] = sum.z, c[3] = sum.w;
}

}  // namespace lockstep::kernels
