// EXL3 tiles to numbers, eight tiles of a strip (128 inputs x 16 columns) at a time. `tiles` points at
// 8*16*kBitsX2 bytes; up to 64 bytes after them may be read, never used. Arrays are 64-byte aligned.
//
// mul1 as byte sums:
//   DecodeByteSums<kBitsX2>(tiles, panel): panel[2048] = 0..1020, in an order that MultiplyByteSums knows.
//   MultiplyByteSums(panel, codes, rows, sums): sums[rows][16] = sum of code * byte sum, wrapping, columns
//     ascending; codes[rows][128] in tile order (linear_steps.h).
//   MultiplyTilesInt16<kBitsX2, kRows>(tiles, codes, sums): both in one, for few rows (AVX2, AVX-512).
//   MultiplyTilesInt8<kBitsX2, kRows>(tiles, splat, sums): the same with splat[rows][64] of int8 codes
//     (AVX-512).
// Any codebook as the format's fp16 weights, widened, columns in an order of the instruction set's own:
//   DecodeWeights<kBitsX2, kCodebook>(tiles, panel): panel[128][16].
//   MultiplyWeights<kBitsX2, kCodebook>(tiles, count, x, lanes): `count` tiles and one row of inputs x[16*count];
//     lanes[16][16] take fma(x_k, weight, lane) in lane k%16 (AVX-512).
//   ColumnOrder(a): from that order to ascending columns.
#pragma once

#include "kernels/contract/vec.h"

#if LOCKSTEP_ISA_LEVEL == 2
#include "kernels/linear/trellis_avx512.h"
#elif LOCKSTEP_ISA_LEVEL == 1
#include "kernels/linear/trellis_avx2.h"
#else
#include "kernels/linear/trellis_generic.h"
#endif

namespace lockstep::kernels::LOCKSTEP_ISA {

// visit.operator()<kBitsX2>() for the rate at hand; every rate of the format has its own code.
template <class Visit>
LOCKSTEP_INLINE auto ForBits(int bits_x2, Visit visit) {
  switch (bits_x2) {
    case 2:
      return visit.template operator()<2>();
    case 3:
      return visit.template operator()<3>();
    case 4:
      return visit.template operator()<4>();
    case 5:
      return visit.template operator()<5>();
    case 6:
      return visit.template operator()<6>();
    case 7:
      return visit.template operator()<7>();
    case 8:
      return visit.template operator()<8>();
    case 10:
      return visit.template operator()<10>();
    case 12:
      return visit.template operator()<12>();
    case 14:
      return visit.template operator()<14>();
    default:
      return visit.template operator()<16>();
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
