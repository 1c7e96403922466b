// Family H's block rule on 16 outputs at a time, bit for bit mma_block.h, several billion products a second and
// core.
//
// One row of A meets 16 columns of B (a panel). Both are decoded beforehand into fp32 values and stored
// exponents. Then, with E known for each lane, one float product of a and b is exact, its scaling by 2^(F-E) is
// exact, and the conversion to int32 cuts toward zero exactly where the rule does. Sixteen such terms stay
// below 2^31; c comes last and is added with its carry. Lanes far from 1 (E outside [-100, 100]) take
// mma_block.h's path, so the result is exact everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contract/mma_block.h"
#include "kernels/contract/vec.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// The exponent given to zeros: a sum with it is below every real one, and two of them fit in 16 bits.
constexpr std::int32_t kNoMmaExponent = -4000;

// Decoded operands. K is padded with zeros to a multiple of 16. A row: values[K], exponents[K/2]. A panel:
// values[K][16], exponents[K/2][16]. An exponent word holds those of two consecutive k, the even one in its low
// half.
struct MmaDecoded {
  const float* values;
  const std::int32_t* exponents;
};

// Stored exponents of 16 fp16 or bf16 patterns (as MmaOperand has them), kNoMmaExponent for zeros.
LOCKSTEP_INLINE I32x16 MmaExponentOfF16(I32x16 bits) {
  const I32x16 exponent = Max((bits >> 10) & I32x16(0x1f), I32x16(1)) - I32x16(15);
  return Select(Equal(bits & I32x16(0x7fff), I32x16(0)), I32x16(kNoMmaExponent), exponent);
}
LOCKSTEP_INLINE I32x16 MmaExponentOfBF16(I32x16 bits) {
  const I32x16 exponent = Max((bits >> 7) & I32x16(0xff), I32x16(1)) - I32x16(127);
  return Select(Equal(bits & I32x16(0x7fff), I32x16(0)), I32x16(kNoMmaExponent), exponent);
}

// Two exponent vectors as one of pairs.
LOCKSTEP_INLINE I32x16 PairExponents(I32x16 even, I32x16 odd) { return (even & I32x16(0xffff)) | (odd << 16); }

// The operand that a decoded value and its exponent stand for.
LOCKSTEP_INLINE MmaOperand MmaOperandOfDecoded(float value, std::int32_t exponent) {
  if (exponent == kNoMmaExponent) return {};
  const auto to_integer = static_cast<std::int64_t>(1023 + 10 - exponent) << 52;
  return {static_cast<std::int32_t>(static_cast<double>(value) * __builtin_bit_cast(double, to_integer)),
          exponent};
}

// One block of one lane by mma_block.h: `b` points at the lane's column.
inline float MmaEmulateLane(MmaRule rule, float c, MmaDecoded a, MmaDecoded b) {
  MmaOperand block_a[16], block_b[16];
  for (int i = 0; i < rule.block; ++i) {
    const int shift = i % 2 == 0 ? 16 : 0;
    const std::int32_t exponent_a =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(a.exponents[i / 2]) << shift) >> 16;
    const std::int32_t exponent_b =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(b.exponents[16 * (i / 2)]) << shift) >> 16;
    block_a[i] = MmaOperandOfDecoded(a.values[i], exponent_a);
    block_b[i] = MmaOperandOfDecoded(b.values[16 * i], exponent_b);
  }
  return MmaBlock(rule, c, block_a, block_b);
}

// The lanes of `lanes` recomputed one by one: E is out of the fast path's range.
__attribute__((noinline)) inline F32x16 MmaEmulateSlowLanes(MmaRule rule, std::uint32_t lanes, F32x16 fast,
                                                            F32x16 c, MmaDecoded a, MmaDecoded b) {
  float results[16], accumulators[16];
  Store(fast, results);
  Store(c, accumulators);
  for (int lane = 0; lane < 16; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    results[lane] = MmaEmulateLane(rule, accumulators[lane], a, {b.values + lane, b.exponents + lane});
  }
  return Load(results);
}

// RZ32((products + c) * 2^grid) for |products| < 2^31, |c| < 2^26, -125 <= grid <= 75.
LOCKSTEP_INLINE F32x16 RoundMmaSum(I32x16 products, I32x16 c, I32x16 grid) {
  // The sum needs 33 bits. Its sign is that of half of it, which fits; its magnitude fits in 32 unsigned bits.
  const I32x16 half = (products >> 1) + (c >> 1) + (products & c & I32x16(1));
  const I32x16 sign = half >> 31;
  const I32x16 magnitude = ((products + c) ^ sign) - sign;
  const F32x16 result = Mul(TruncateUnsignedToFloat(magnitude), PowerOfTwo(grid));
  return FloatOf(BitsOf(result) | (sign & I32x16(INT32_MIN)));
}

// E of each lane, before the floor kMmaMinExponent: below -1000 if nothing counts. A zero or subnormal c may
// give -127.
template <int kBlock, int kRows>
LOCKSTEP_INLINE void MmaLargestExponents(const MmaDecoded (&a)[kRows], MmaDecoded b, const F32x16 (&c)[kRows],
                                         I32x16 (&largest)[kRows]) {
  const I32x16 none = PairExponents(I32x16(2 * kNoMmaExponent), I32x16(2 * kNoMmaExponent));
  for (int r = 0; r < kRows; ++r) largest[r] = none;
  for (int i = 0; i < kBlock / 2; ++i) {
    const I32x16 exponents_b = LoadI32(b.exponents + 16 * i);
    for (int r = 0; r < kRows; ++r) {
      largest[r] = MaxPairs16(largest[r], AddPairs16(exponents_b, I32x16(a[r].exponents[i])));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const I32x16 of_products = Max((largest[r] << 16) >> 16, largest[r] >> 16);
    const I32x16 of_c = ((BitsOf(c[r]) >> 23) & I32x16(0xff)) - I32x16(127);
    largest[r] = Max(of_products, Select(Equal(c[r], F32x16(0.0f)), I32x16(2 * kNoMmaExponent), of_c));
  }
}

// One block of kBlock products for kRows rows against one panel: c[r] becomes its accumulator after the block.
// F is at most 25.
template <int kBlock, int kRows>
LOCKSTEP_INLINE void MmaEmulateBlock(int fraction_bits, const MmaDecoded (&a)[kRows], MmaDecoded b,
                                     F32x16 (&c)[kRows]) {
  static_assert(kBlock % 2 == 0 && kBlock <= 16);
  I32x16 exponent[kRows], grid[kRows], sum[kRows];
  F32x16 scale[kRows];
  std::uint32_t slow[kRows];
  MmaLargestExponents<kBlock>(a, b, c, exponent);
  for (int r = 0; r < kRows; ++r) {
    const Mask16 out_of_range = Less(exponent[r], I32x16(-100)) | Less(I32x16(100), exponent[r]);
    slow[r] = BitsOf(out_of_range & ~Less(exponent[r], I32x16(-1000)));
    grid[r] = Max(Min(exponent[r], I32x16(100)), I32x16(-100)) - I32x16(fraction_bits);
    scale[r] = PowerOfTwo(I32x16(0) - grid[r]);
    sum[r] = I32x16(0);
  }
  for (int i = 0; i < kBlock; ++i) {
    const F32x16 values_b = Load(b.values + 16 * i);
    for (int r = 0; r < kRows; ++r) {
      sum[r] += TruncateToInt(Mul(Mul(values_b, F32x16(a[r].values[i])), scale[r]));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const F32x16 fast = RoundMmaSum(sum[r], TruncateToInt(Mul(c[r], scale[r])), grid[r]);
    c[r] = slow[r] == 0 ? fast : MmaEmulateSlowLanes({kBlock, fraction_bits}, slow[r], fast, c[r], a[r], b);
  }
}

// H(c; a, b) of kRows rows against one panel over k products by the block rule. (The chains work on a copy of
// c: behind the caller's reference it could overlap the operands, and would have to go through memory.)
template <int kBlock, int kRows>
inline void MmaEmulateChain(int fraction_bits, const MmaDecoded (&a)[kRows], MmaDecoded b, std::int64_t k,
                            F32x16 (&c)[kRows]) {
  F32x16 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = c[r];
  for (std::int64_t begin = 0; begin < k; begin += kBlock) {
    MmaDecoded block_a[kRows];
    for (int r = 0; r < kRows; ++r) block_a[r] = {a[r].values + begin, a[r].exponents + begin / 2};
    MmaEmulateBlock<kBlock>(fraction_bits, block_a, {b.values + 16 * begin, b.exponents + 8 * begin}, sum);
  }
  for (int r = 0; r < kRows; ++r) c[r] = sum[r];
}

// The same for profiles whose arithmetic is fp32.
template <int kRows>
inline void MmaSm70JitChain(const MmaDecoded (&a)[kRows], MmaDecoded b, std::int64_t k, F32x16 (&c)[kRows]) {
  F32x16 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = c[r];
  for (std::int64_t begin = 0; begin < k; begin += 4) {
    const float* values_b = b.values + 16 * begin;
    for (int r = 0; r < kRows; ++r) {
      const float* values_a = a[r].values + begin;
      F32x16 four = Mul(F32x16(values_a[0]), Load(values_b));
      for (int i = 1; i < 4; ++i) four = Add(four, Mul(F32x16(values_a[i]), Load(values_b + 16 * i)));
      sum[r] = Add(sum[r], four);
    }
  }
  for (int r = 0; r < kRows; ++r) c[r] = sum[r];
}
template <int kRows>
inline void MmaFmaChain(const MmaDecoded (&a)[kRows], MmaDecoded b, std::int64_t k, F32x16 (&c)[kRows]) {
  F32x16 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = c[r];
  for (std::int64_t i = 0; i < k; ++i) {
    const F32x16 values_b = Load(b.values + 16 * i);
    for (int r = 0; r < kRows; ++r) sum[r] = Fma(F32x16(a[r].values[i]), values_b, sum[r]);
  }
  for (int r = 0; r < kRows; ++r) c[r] = sum[r];
}

// MmaAccumulate (mma_block.h) of kRows rows and 16 columns: c[r] becomes H(c[r]; row r, columns of b) over k
// products. Two or more rows at a time keep the units busy. (MmaDot is this from +0 for all profiles but kFma,
// which has its own order for it.)
template <int kRows>
LOCKSTEP_INLINE void MmaAccumulateLanes(Profile profile, const MmaDecoded (&a)[kRows], MmaDecoded b,
                                        std::int64_t k, F32x16 (&c)[kRows]) {
  switch (profile) {
    case Profile::kSm90:
      return MmaEmulateChain<16>(25, a, b, k, c);
    case Profile::kSm90K8:
      return MmaEmulateChain<8>(25, a, b, k, c);
    case Profile::kSm80:
    case Profile::kSm75:
      return MmaEmulateChain<8>(24, a, b, k, c);
    case Profile::kSm70:
      return MmaEmulateChain<4>(23, a, b, k, c);
    case Profile::kSm70Jit:
      return MmaSm70JitChain(a, b, k, c);
    case Profile::kFma:
      return MmaFmaChain(a, b, k, c);
  }
}

// k rounded up to whole blocks of every profile: the K of decoded buffers.
LOCKSTEP_INLINE std::int64_t MmaPaddedLength(std::int64_t k) { return (k + 15) / 16 * 16; }

// Decodes a row of k operands into values[MmaPaddedLength(k)] and exponents[MmaPaddedLength(k)/2].
inline void DecodeMmaRow(MmaFormat format, const std::uint16_t* bits, std::int64_t k, float* values,
                         std::int32_t* exponents) {
  for (std::int64_t i = 0; i < MmaPaddedLength(k); ++i) {
    const std::uint16_t pattern = i < k ? bits[i] : std::uint16_t{0};
    const MmaOperand operand = format == MmaFormat::kF16 ? MmaOperandOfF16(pattern) : MmaOperandOfBF16(pattern);
    const std::int32_t exponent = operand.significand != 0 ? operand.exponent : kNoMmaExponent;
    values[i] = operand.value;
    if (i % 2 == 0) exponents[i / 2] = exponent & 0xffff;
    if (i % 2 == 1) exponents[i / 2] |= static_cast<std::int32_t>(static_cast<std::uint32_t>(exponent) << 16);
  }
}

// Decodes 16 columns, bits[k][16], into values[MmaPaddedLength(k)][16] and exponents[MmaPaddedLength(k)/2][16].
inline void DecodeMmaPanel(MmaFormat format, const std::uint16_t* bits, std::int64_t k, float* values,
                           std::int32_t* exponents) {
  const bool is_f16 = format == MmaFormat::kF16;
  for (std::int64_t i = 0; i < MmaPaddedLength(k); i += 2) {
    I32x16 exponent[2];
    for (int odd = 0; odd < 2; ++odd) {
      const std::uint16_t* row = bits + 16 * (i + odd);
      const bool inside = i + odd < k;
      const I32x16 patterns = inside ? LoadU16(row) : I32x16(0);
      exponent[odd] = is_f16 ? MmaExponentOfF16(patterns) : MmaExponentOfBF16(patterns);
      Store(!inside ? F32x16(0.0f) : is_f16 ? LoadF16(row) : LoadBF16(row), values + 16 * (i + odd));
    }
    StoreI32(PairExponents(exponent[0], exponent[1]), exponents + 8 * i);
  }
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
