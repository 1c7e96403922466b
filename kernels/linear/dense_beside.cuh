// BF16 linears of few rows that a launch of EXL3 products takes along, in blocks of their own. Contract: docs/numerics.md sections 2 and 3.
#pragma once

#include <algorithm>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/linear/exl3_cuda.h"

namespace lockstep::kernels {

// Eight columns of a linear by a group of four warps, a K segment each. Weights, which no kernel writes, are fetched before the wait for the kernel before,
// all at once: what is left are a load of the rows and the chain of the products.
struct DenseShare {
  static constexpr int kColumns = 8, kThreads = 32 * contract::kSegments;
  static constexpr int kPad = 16;  // elements: rows in shared memory lie in other banks
  using Partial = float[contract::kSegments][kColumns][kColumns];  // [segment][row][column]

  const DenseLinear& linear;
  const int column0;
  std::uint16_t *w, *x;  // [8][in + kPad], [rows][in + kPad]
  Partial& partial;

  static __host__ __device__ int Bytes(const DenseLinear& linear) {
    return static_cast<int>(sizeof(Partial)) + (kColumns + static_cast<int>(linear.rows)) * (linear.in + kPad) * 2;
  }
  static __host__ __device__ int Groups(const DenseLinear& linear) { return (linear.out + kColumns - 1) / kColumns; }

  __device__ DenseShare(const DenseLinear& of, int column, std::byte* memory)
      : linear(of), column0(column), w(reinterpret_cast<std::uint16_t*>(memory + sizeof(Partial))), x(w + kColumns * (of.in + kPad)), partial(*reinterpret_cast<Partial*>(memory)) {}

  __device__ void FetchWeights() const {
    for (int c = 0; c < kColumns; ++c) Fetch(w + c * (linear.in + kPad), linear.w + static_cast<std::int64_t>(min(column0 + c, linear.out - 1)) * linear.in);
  }
  __device__ void FetchRows() const {
    for (int r = 0; r < static_cast<int>(linear.rows); ++r) Fetch(x + r * (linear.in + kPad), linear.x + r * linear.x_stride);
  }
  // A product's order inside a block of 16 is free: a thread's share are four neighbouring channels.
  __device__ void Sum() const {
    const int segment = threadIdx.x / 32 % contract::kSegments, g = threadIdx.x % 32 / 4, q = threadIdx.x & 3;
    const contract::SegmentRange range = contract::SegmentOf(linear.in, segment);
    const std::uint16_t* own_w = w + g * (linear.in + kPad) + 4 * q;
    const std::uint16_t* own_x = x + min(g, static_cast<int>(linear.rows) - 1) * (linear.in + kPad) + 4 * q;
    float sum[4] = {};
#pragma unroll 8
    for (int k = static_cast<int>(range.begin); k < static_cast<int>(range.end); k += 16) {
      const uint2 weights = *reinterpret_cast<const uint2*>(own_w + k), values = *reinterpret_cast<const uint2*>(own_x + k);
      MmaBF16(sum, FragmentA{{values.x, 0u, values.y, 0u}}, weights.x, weights.y);
    }
    partial[segment][g][2 * q] = sum[0], partial[segment][g][2 * q + 1] = sum[1];
  }
  __device__ void Store() const {
    const int i = static_cast<int>(threadIdx.x) % kThreads, r = i / kColumns, c = i % kColumns;
    if (i < kColumns * kColumns) linear.Store(r, column0 + c, contract::FoldSegments(partial[0][r][c], partial[1][r][c], partial[2][r][c], partial[3][r][c]));
  }

 private:
  __device__ void Fetch(std::uint16_t* to, const std::uint16_t* from) const {
    for (int k = 8 * (static_cast<int>(threadIdx.x) % kThreads); k < linear.in; k += 8 * kThreads) CopyAsync<16>(to + k, from + k);
  }
};

// Gives the linears of `dense` blocks, of at most `most_groups` groups of warps and `bytes` of shared memory.
inline void PlaceDense(int most_groups, int bytes, DenseBeside* dense) {
  int needed = 0;
  dense->group_bytes = 0;
  for (int i = 0; i < dense->count; ++i) {
    needed += DenseShare::Groups(dense->linears[i]);
    dense->group_bytes = std::max(dense->group_bytes, (DenseShare::Bytes(dense->linears[i]) + 15) / 16 * 16);
  }
  dense->groups = dense->count > 0 ? std::min(most_groups, bytes / dense->group_bytes) : 0;
  dense->blocks = dense->groups > 0 ? (needed + dense->groups - 1) / dense->groups : 0;
}

// Block i of them.
__device__ __noinline__ inline void MultiplyDense(const DenseBeside& dense) {
  extern __shared__ uint4 shared_words[];
  StartNextKernel();
  const int own = static_cast<int>(threadIdx.x) / DenseShare::kThreads;
  int group = static_cast<int>(blockIdx.x) * dense.groups + own, i = 0;
  while (i < dense.count && group >= DenseShare::Groups(dense.linears[i])) group -= DenseShare::Groups(dense.linears[i++]);
  const bool has = own < dense.groups && i < dense.count;
  const DenseShare share(dense.linears[has ? i : 0], group * DenseShare::kColumns, reinterpret_cast<std::byte*>(shared_words) + (has ? own : 0) * dense.group_bytes);
  if (has) share.FetchWeights();
  WaitForKernelsBefore();
  if (has) share.FetchRows();
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  if (has) share.Sum();
  __syncthreads();
  if (has) share.Store();
}

}  // namespace lockstep::kernels
