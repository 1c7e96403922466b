// A warp's m16n8k16 product of bf16 operands, one output at a time by the block rule of the contract: for tensor cores that take fp16 only.
#pragma once

#include <cstdint>

#include "kernels/contract/mma_block.h"
#include "kernels/linear/mma_fragments.cuh"

namespace lockstep::kernels {

// Blocks of kBlock products, ascending. block_rule(c, a, b) is one block.
template <int kBlock, class BlockRule>
__device__ void MmaBF16Software(float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1, BlockRule block_rule) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x & 31, quad = lane & ~3, q = lane & 3;
  const auto unpack = [](std::uint32_t pair, contract::MmaOperand* at) {
    at[0] = contract::MmaOperandOfBF16(static_cast<std::uint16_t>(pair));
    at[1] = contract::MmaOperandOfBF16(static_cast<std::uint16_t>(pair >> 16));
  };
#pragma unroll 1
  for (int k = 0; k < 16; k += kBlock) {
    contract::MmaOperand row[2][kBlock], column[2][kBlock];
    for (int i = 0; i < kBlock; i += 2) {
      const int half = (k + i) / 8, from = (k + i) % 8 / 2;
      const std::uint32_t b = half == 0 ? b0 : b1;
      unpack(__shfl_sync(kAll, half == 0 ? a.a[0] : a.a[2], quad + from), &row[0][i]);
      unpack(__shfl_sync(kAll, half == 0 ? a.a[1] : a.a[3], quad + from), &row[1][i]);
      unpack(__shfl_sync(kAll, b, 8 * q + from), &column[0][i]);
      unpack(__shfl_sync(kAll, b, 8 * q + 4 + from), &column[1][i]);
    }
#pragma unroll 1
    for (int i = 0; i < 4; ++i) c[i] = block_rule(c[i], row[i / 2], column[i % 2]);
  }
}

}  // namespace lockstep::kernels
