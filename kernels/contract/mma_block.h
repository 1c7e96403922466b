// Contract family H, one output at a time and word for word: what a tensor core does with fp16 or bf16 operands
// and an fp32 accumulator (docs/numerics.md, section 2). mma_emulate.h is the fast version; devices whose tensor cores do not take bf16
// compute so too.
//
// One block of KB products, profile fraction F:
//
//     d = RZ32( sum of trunc(x, 2^(E-F)) )   over x in { c, a_0 b_0, ..., a_{KB-1} b_{KB-1} }
//
// The fine print, each point measured on an H200 for mma.sync k16, k8 and wgmma, fp16 and bf16
// (golden/oracles/mma):
//   * E is the largest of e(a_i)+e(b_i) over the non-zero products, of e(c) if c is not zero, and of
//   kMinExponent.
//   * Exponents are the stored ones, not normalised: a subnormal operand has its format's smallest normal
//   exponent (-14
//     for fp16, -126 for bf16) and a significand below 1, and so has a subnormal c (-126). A product's
//     significand lies in [0, 4), and the product is not normalised either.
//   * A zero of either sign contributes nothing and has no exponent, however large the other factor is.
//   * trunc is toward zero; the sum is exact; RZ32 is toward zero, subnormal results included.
//   * A result that is zero is +0: also for c = -0, and where RZ32 truncates a negative sum to zero.
//   * A result of 2^128 or more is an infinity of its sign (not the largest finite number).
//   * An infinite c stays. A NaN c gives 0x7fffffff. Infinities and NaNs among a and b are outside the
//   contract.
// Profiles of older architectures have KB and F from the literature and take the rest from here, unproven.
#pragma once

#include <cstdint>

#include "kernels/contract/float_ops.h"
#include "kernels/contract/mma_format.h"
#include "model/numerics_options.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// significand * 2^exponent, exact unless it overflows to infinity; |significand| < 2^24, exponent >= -149.
LOCKSTEP_HD float ScaleBySplitPower(std::int32_t significand, int exponent) {
  const int half = exponent >> 1;
  return Mul(Mul(static_cast<float>(significand), PowerOfTwo(half)), PowerOfTwo(exponent - half));
}

// A finite operand: significand * 2^(exponent - 10), |significand| < 2^11, exponent as stored (see above).
// `value` is the same as fp32 and keeps the sign of a zero, which the profiles with fp32 arithmetic see.
struct MmaOperand {
  std::int32_t significand = 0;
  std::int32_t exponent = 0;
  float value = 0.0f;
};

LOCKSTEP_HD MmaOperand MakeMmaOperand(bool negative, std::int32_t magnitude, std::int32_t exponent) {
  const float value = ScaleBySplitPower(magnitude, exponent - 10);
  return {negative ? -magnitude : magnitude, exponent, negative ? Negate(value) : value};
}

// The operand with these bits. Infinities and NaNs are the caller's error.
LOCKSTEP_HD MmaOperand MmaOperandOfF16(std::uint16_t bits) {
  const std::int32_t stored = (bits >> 10) & 0x1f;
  const std::int32_t magnitude = (bits & 0x3ff) | (stored != 0 ? 0x400 : 0);
  return MakeMmaOperand((bits & 0x8000) != 0, magnitude, stored != 0 ? stored - 15 : -14);
}
LOCKSTEP_HD MmaOperand MmaOperandOfBF16(std::uint16_t bits) {
  const std::int32_t stored = (bits >> 7) & 0xff;
  const std::int32_t magnitude = ((bits & 0x7f) | (stored != 0 ? 0x80 : 0)) << 3;
  return MakeMmaOperand((bits & 0x8000) != 0, magnitude, stored != 0 ? stored - 127 : -126);
}

struct MmaRule {
  int block;          // KB, at most 16
  int fraction_bits;  // F
};

// KB and F of the profiles that follow the rule above: all but kSm70Jit and kFma.
LOCKSTEP_HD MmaRule MmaRuleOf(Profile profile) {
  switch (profile) {
    case Profile::kSm90K8:
      return {8, 25};
    case Profile::kSm80:
    case Profile::kSm75:
      return {8, 24};
    case Profile::kSm70:
      return {4, 23};
    default:
      return {16, 25};
  }
}

// Index of the highest bit of a number that is not 0.
LOCKSTEP_HD int TopBit(std::uint64_t value) {
#if defined(__CUDA_ARCH__)
  return 63 - __clzll(static_cast<long long>(value));
#else
  return 63 - __builtin_clzll(value);
#endif
}

// E is never smaller: the adder's grid ends at 2^(kMinExponent-F).
constexpr int kMmaMinExponent = -133;

// RZ32(sum * 2^exponent), |sum| < 2^62.
LOCKSTEP_HD float TruncateToFloat(std::int64_t sum, int exponent) {
  const std::uint64_t magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  if (magnitude == 0) return 0.0f;
  const int top = TopBit(magnitude);
  int last = top + exponent - 23;  // exponent of the last bit that a normal result keeps
  if (last < -149) last = -149;
  const int drop = last - exponent;
  if (drop > top) return 0.0f;
  const std::int32_t kept = static_cast<std::int32_t>(drop >= 0 ? magnitude >> drop : magnitude << -drop);
  if (last > 104) return FloatOf(sum < 0 ? INT32_MIN + 0x7f800000 : 0x7f800000);
  return ScaleBySplitPower(sum < 0 ? -kept : kept, last);
}

// significand * 2^exponent truncated toward zero to a multiple of 2^grid, in units of 2^grid.
LOCKSTEP_HD std::int64_t TruncateToGrid(std::int32_t significand, int exponent, int grid) {
  if (significand == 0) return 0;  // its exponent may be out of range
  const int left = exponent - grid;
  const std::int64_t magnitude = significand < 0 ? -significand : significand;
  const std::int64_t kept = left >= 0 ? magnitude << left : left > -32 ? magnitude >> -left : 0;
  return significand < 0 ? -kept : kept;
}

// One block: the accumulator after rule.block products onto c.
LOCKSTEP_HD float MmaBlock(MmaRule rule, float c, const MmaOperand* a, const MmaOperand* b) {
  const std::int32_t c_bits = BitsOf(c);
  const std::int32_t c_stored = (c_bits >> 23) & 0xff;
  const std::int32_t c_magnitude = (c_bits & 0x7fffff) | (c_stored != 0 ? 0x800000 : 0);
  const std::int32_t c_exponent = c_stored != 0 ? c_stored - 127 : -126;
  if (c_stored == 255) return IsNan(c) ? FloatOf(0x7fffffff) : c;

  int largest = kMmaMinExponent;
  if (c_magnitude != 0 && c_exponent > largest) largest = c_exponent;
  for (int i = 0; i < rule.block; ++i) {
    const bool counts = a[i].significand != 0 && b[i].significand != 0;
    if (counts && a[i].exponent + b[i].exponent > largest) largest = a[i].exponent + b[i].exponent;
  }

  const int grid = largest - rule.fraction_bits;
  std::int64_t sum = TruncateToGrid(c_bits < 0 ? -c_magnitude : c_magnitude, c_exponent - 23, grid);
  for (int i = 0; i < rule.block; ++i) {
    const std::int32_t product = a[i].significand * b[i].significand;
    sum += TruncateToGrid(product, a[i].exponent + b[i].exponent - 20, grid);
  }
  return TruncateToFloat(sum, grid);
}

// The block of sm70jit: four products, exact in fp32, every addition to nearest.
LOCKSTEP_HD float MmaBlockSm70Jit(float c, const MmaOperand* a, const MmaOperand* b) {
  float sum = Mul(a[0].value, b[0].value);
  for (int i = 1; i < 4; ++i) sum = Add(sum, Mul(a[i].value, b[i].value));
  return Add(c, sum);
}

// H(c; a, b) over n: blocks ascending from accumulator c, the last one padded with zeros; profile fma: one fma
// a product.
inline float MmaAccumulate(Profile profile, float c, const MmaOperand* a, const MmaOperand* b,
                           std::int64_t n) {
  if (profile == Profile::kFma) {
    for (std::int64_t k = 0; k < n; ++k) c = Fma(a[k].value, b[k].value, c);
    return c;
  }
  const bool jit = profile == Profile::kSm70Jit;
  const MmaRule rule = jit ? MmaRule{4, 0} : MmaRuleOf(profile);
  for (std::int64_t k = 0; k < n; k += rule.block) {
    MmaOperand block_a[16], block_b[16];
    for (int i = 0; i < rule.block && k + i < n; ++i) {
      block_a[i] = a[k + i];
      block_b[i] = b[k + i];
    }
    c = jit ? MmaBlockSm70Jit(c, block_a, block_b) : MmaBlock(rule, c, block_a, block_b);
  }
  return c;
}

// H(0; a, b) over n. Profile fma: 16 lanes and their fold; the others start MmaAccumulate from +0.
inline float MmaDot(Profile profile, const MmaOperand* a, const MmaOperand* b, std::int64_t n) {
  if (profile != Profile::kFma) return MmaAccumulate(profile, 0.0f, a, b, n);
  float lanes[16] = {};
  for (std::int64_t k = 0; k < n; ++k) lanes[k % 16] = Fma(a[k].value, b[k].value, lanes[k % 16]);
  for (int stride = 8; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) lanes[i] = Add(lanes[i], lanes[i + stride]);
  }
  return lanes[0];
}

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
