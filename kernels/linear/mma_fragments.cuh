// How the operands of a warp's m16n8k16 product lie: lane = 4*g + q; A rows g, g+8; B column g; C columns 2q, 2q+1 of rows g, g+8.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct FragmentA {
  std::uint32_t a[4];  // (g, 2q), (g+8, 2q), (g, 2q+8), (g+8, 2q+8): two values each
};

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
