// A warp's m16n8k32 product of bytes on whatever the code is compiled for: unsigned A, signed B, exact int32 sums. lane = 4*g + q; A rows g, g+8, bytes 4q.. and 16+4q..;
// B column g; C columns 2q, 2q+1 of rows g, g+8.
#pragma once

#include <cstdint>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace lockstep::kernels {

__device__ inline void MmaU8S8(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace lockstep::kernels

#else
#include "kernels/linear/imma_sm75.cuh"
#endif
