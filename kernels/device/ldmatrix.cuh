// Warp-wide loads of 8x8 matrices of 16-bit values from shared memory: the fragments of mma_sm80.cuh, and asynchronous copies to it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear/mma_sm80.cuh"

namespace lockstep::kernels {

__device__ inline std::uint32_t SharedAddress(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
// By an address in shared memory: constants added to it take no instructions.
__device__ inline void LoadMatricesAt(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}
__device__ inline void LoadMatricesTransposedAt(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}
__device__ inline void LoadMatrices(std::uint32_t (&r)[4], const std::uint16_t* row) { LoadMatricesAt(r, SharedAddress(row)); }
__device__ inline void LoadMatricesTransposed(std::uint32_t (&r)[4], const std::uint16_t* row) { LoadMatricesTransposedAt(r, SharedAddress(row)); }

#else
// Lane 8j + i holds the address of row i of matrix j; the others ask it.
__device__ inline const std::uint16_t* RowOfLane(const std::uint16_t* row, int lane) {
  return reinterpret_cast<const std::uint16_t*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(row), lane));
}
__device__ inline void LoadMatrices(std::uint32_t (&r)[4], const std::uint16_t* row) {
  const int lane = threadIdx.x & 31;
  for (int j = 0; j < 4; ++j) r[j] = *reinterpret_cast<const std::uint32_t*>(RowOfLane(row, 8 * j + lane / 4) + 2 * (lane % 4));
}
__device__ inline void LoadMatricesTransposed(std::uint32_t (&r)[4], const std::uint16_t* row) {
  const int lane = threadIdx.x & 31;
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t low = RowOfLane(row, 8 * j + 2 * (lane % 4))[lane / 4], high = RowOfLane(row, 8 * j + 2 * (lane % 4) + 1)[lane / 4];
    r[j] = low | (high << 16);
  }
}
__device__ inline void LoadMatricesAt(std::uint32_t (&r)[4], std::uint32_t row) { LoadMatrices(r, static_cast<const std::uint16_t*>(__cvta_shared_to_generic(row))); }
__device__ inline void LoadMatricesTransposedAt(std::uint32_t (&r)[4], std::uint32_t row) {
  LoadMatricesTransposed(r, static_cast<const std::uint16_t*>(__cvta_shared_to_generic(row)));
}
#endif

// Rows row0 .. row0+15, k0 .. k0+15 of a row-major array as an A fragment. Rows are 16-byte aligned.
__device__ inline FragmentA LoadTileA(const std::uint16_t* x, int stride, int row0, int k0) {
  const int lane = threadIdx.x & 31;
  FragmentA f;
  LoadMatrices(f.a, x + (row0 + (lane & 15)) * stride + k0 + (lane >> 4) * 8);
  return f;
}

// B fragments of columns n0 .. n0+15, whose values lie along rows of x: b[0], b[1] of the first eight columns, b[2], b[3] of the others.
__device__ inline void LoadTileB(std::uint32_t (&b)[4], const std::uint16_t* x, int stride, int n0, int k0) {
  const int lane = threadIdx.x & 31;
  LoadMatrices(b, x + (n0 + (lane & 7) + ((lane >> 4) << 3)) * stride + k0 + ((lane >> 3) & 1) * 8);
}

// The same where row k of x holds the values of all columns.
__device__ inline void LoadTileBTransposed(std::uint32_t (&b)[4], const std::uint16_t* x, int stride, int n0, int k0) {
  const int lane = threadIdx.x & 31;
  LoadMatricesTransposed(b, x + (k0 + (lane & 15)) * stride + n0 + (lane >> 4) * 8);
}

// kBytes (4, 8 or 16) to shared memory; both addresses are multiples of kBytes. A plain copy before sm_80.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <int kBytes>
__device__ inline void CopyAsync(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(SharedAddress(shared)), "l"(global), "n"(kBytes) : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#else
template <int kBytes>
__device__ inline void CopyAsync(void* shared, const void* global) {
  for (int i = 0; i < kBytes / 4; ++i) static_cast<std::uint32_t*>(shared)[i] = static_cast<const std::uint32_t*>(global)[i];
}
__device__ inline void CommitCopies() {}
template <int kPending>
__device__ inline void WaitForCopies() {}
#endif

// Two values rounded to bf16, the first in the low half.
__device__ inline std::uint32_t PackBF16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

}  // namespace lockstep::kernels
