// Packing of a row by a block. Contract: docs/numerics.md section 5.
#pragma once

#include "kernels/kv_rows/kv_codec.cuh"

namespace lockstep::kernels {

// Where a row goes: up to two places.
struct PackTargets {
  std::byte *flat, *listed;

  __device__ PackTargets(const PackRowsArgs& a, std::int64_t i, std::int64_t row_bytes) : flat(a.flat ? a.flat + i * row_bytes : nullptr), listed(a.to_T ? a.to_T[i] : nullptr) {}
  __device__ bool none() const { return !flat && !listed; }
};

// A quantized row from its codes and scales; `x` gives the channels that are not quantized.
__device__ inline void StoreQuantized(const RowFormat& f, const std::uint8_t* codes, const std::uint8_t* scales, const float* x, std::uint8_t* row) {
  const int width = f.kind == RowFormat::Kind::kFp8 ? f.quantized : f.width, threads = blockDim.x;
  const int code_bytes = f.kind == RowFormat::Kind::kFp8 ? width : (width + 1) / 2, scale_bytes = (width + f.block - 1) / f.block;
#pragma unroll 1
  for (int d = threadIdx.x; d < code_bytes; d += threads) {
    row[d] = f.kind == RowFormat::Kind::kFp8 ? codes[d] : static_cast<std::uint8_t>(codes[2 * d] | (codes[2 * d + 1] << 4));
  }
#pragma unroll 1
  for (int b = threadIdx.x; b < scale_bytes; b += threads) row[code_bytes + b] = scales[b];
  if (f.kind != RowFormat::Kind::kFp8) return;
#pragma unroll 1
  for (int d = width + threadIdx.x; d < f.width; d += threads) {
    std::uint8_t* tail = row + code_bytes + scale_bytes + 2 * (d - width);
    const unsigned bits = __float_as_uint(x[d]) >> 16;
    tail[0] = static_cast<std::uint8_t>(bits & 0xff);
    tail[1] = static_cast<std::uint8_t>(bits >> 8);
  }
}

// x[width]: bf16 values in shared memory that every thread of the block sees; not kept.
__device__ inline void PackRow(const RowFormat& f, float* x, float hadamard_scale, const PackTargets& targets) {
  __shared__ std::uint8_t codes[kMaxPackedWidth + 1], scales[kMaxPackedWidth];
  const int threads = blockDim.x;
  if (f.kind != RowFormat::Kind::kBf16) {
    if (threadIdx.x == 0) codes[f.width] = 0;
    if (f.kind == RowFormat::Kind::kHadamardFp4) HadamardBlock(x, f.width, hadamard_scale);
    QuantizeBlocks(f, x, codes, scales);
    __syncthreads();
  }
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    std::byte* to = i == 0 ? targets.flat : targets.listed;
    if (!to) continue;
    if (f.kind == RowFormat::Kind::kBf16) {
      for (int d = threadIdx.x; d < f.width; d += threads) reinterpret_cast<std::uint16_t*>(to)[d] = static_cast<std::uint16_t>(__float_as_uint(x[d]) >> 16);
    } else {
      StoreQuantized(f, codes, scales, x, reinterpret_cast<std::uint8_t*>(to));
    }
  }
}

}  // namespace lockstep::kernels
