// The m16n8k32 product of bytes before sm_80: four m8n8k16 steps on sm_75, dot products of four bytes on sm_70. Sums are exact, so their order
// does not matter.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750

__device__ inline void MmaU8S8K16(int& c0, int& c1, std::uint32_t a, std::uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c0), "+r"(c1) : "r"(a), "r"(b));
}

__device__ inline void MmaU8S8(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  MmaU8S8K16(c[0], c[1], a0, b0);
  MmaU8S8K16(c[0], c[1], a2, b1);
  MmaU8S8K16(c[2], c[3], a1, b0);
  MmaU8S8K16(c[2], c[3], a3, b1);
}

#else

__device__ inline int DotU8S8(std::uint32_t a, std::uint32_t b, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
}

__device__ inline void MmaU8S8(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x & 31, quad = lane & ~3, q = lane & 3;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t upper0 = __shfl_sync(kAll, a0, quad + i), upper1 = __shfl_sync(kAll, a2, quad + i);
    const std::uint32_t lower0 = __shfl_sync(kAll, a1, quad + i), lower1 = __shfl_sync(kAll, a3, quad + i);
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int from = 8 * q + 4 * column + i;
      const std::uint32_t y0 = __shfl_sync(kAll, b0, from), y1 = __shfl_sync(kAll, b1, from);
      c[column] = DotU8S8(upper1, y1, DotU8S8(upper0, y0, c[column]));
      c[2 + column] = DotU8S8(lower1, y1, DotU8S8(lower0, y0, c[2 + column]));
    }
  }
}

#endif

}  // namespace lockstep::kernels
