// The m16n8k16 product on sm_75: two m16n8k8 steps with fp16 operands; bf16 in software.
#pragma once

#include <cstdint>

#include "kernels/linear/mma_fragments.cuh"
#include "kernels/linear/mma_software.cuh"

namespace lockstep::kernels {

__device__ inline void MmaF16K8(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
}

__device__ inline void MmaF16(float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
  MmaF16K8(c, a.a[0], a.a[1], b0);
  MmaF16K8(c, a.a[2], a.a[3], b1);
}

// Not inlined: it is large, and callers have many products.
static __device__ __noinline__ float4 MmaBF16Call(float4 sum, FragmentA a, std::uint32_t b0, std::uint32_t b1) {
  float c[4] = {sum.x, sum.y, sum.z, sum.w};
  MmaBF16Software<8>(c, a, b0, b1, [](float value, const contract::MmaOperand* x, const contract::MmaOperand* y) {
    return contract::MmaBlock(contract::MmaRuleOf(Profile::kSm75), value, x, y);
  });
  return make_float4(c[0], c[1], c[2], c[3]);
}

__device__ inline void MmaBF16(float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
  const float4 sum = MmaBF16Call(make_float4(c[0], c[1], c[2], c[3]), a, b0, b1);
  c[0] = sum.x, c[1] = sum.y, c[2] = sum.z, c[3] = sum.w;
}

}  // namespace lockstep::kernels
