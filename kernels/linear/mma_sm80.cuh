// A warp's product of 16 rows, 16 inputs and 8 columns, fp32 += fp16 or bf16, on whatever tensor cores the code is compiled for. Profiles:
// docs/numerics.md; kernels/device/cuda_profile.h says which one a device computes.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/linear/mma_fragments.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace lockstep::kernels {

__device__ inline void MmaF16(float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b0), "r"(b1));
}

__device__ inline void MmaBF16(float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b0), "r"(b1));
}

}  // namespace lockstep::kernels

#elif __CUDA_ARCH__ >= 750
#include "kernels/linear/mma_sm75.cuh"
#else
#include "kernels/linear/mma_sm70.cuh"
#endif
