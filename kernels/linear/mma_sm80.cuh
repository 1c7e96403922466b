// mma.sync m16n8k16 and how its fragments lie: lane = 4*g + q; A rows g, g+8; B column g; C columns 2q, 2q+1 of rows g, g+8.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace lockstep::kernels {

struct FragmentA {
  std::uint32_t a[4];  // (g, 2q), (g+8, 2q), (g, 2q+8), (g+8, 2q+8): two values each
};

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

// Elements k, k+1 of a row of length n as one register; zeros past its end.
__device__ inline std::uint32_t LoadPair(const std::uint16_t* row, std::int64_t k, std::int64_t n) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(row + k) % 4 == 0;
  if (k + 1 < n && aligned) return *reinterpret_cast<const std::uint32_t*>(row + k);
  const std::uint32_t low = k < n ? row[k] : 0u, high = k + 1 < n ? row[k + 1] : 0u;
  return low | (high << 16);
}

// Rows g and g+8 of a 16-row tile; a null row is zero.
__device__ inline FragmentA LoadA(const std::uint16_t* row0, const std::uint16_t* row8, std::int64_t k0, std::int64_t n) {
  const int q = threadIdx.x & 3;
  FragmentA f;
  f.a[0] = row0 ? LoadPair(row0, k0 + 2 * q, n) : 0u;
  f.a[1] = row8 ? LoadPair(row8, k0 + 2 * q, n) : 0u;
  f.a[2] = row0 ? LoadPair(row0, k0 + 2 * q + 8, n) : 0u;
  f.a[3] = row8 ? LoadPair(row8, k0 + 2 * q + 8, n) : 0u;
  return f;
}

}  // namespace lockstep::kernels
