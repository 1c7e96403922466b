#include "reference/mma_block.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/error.h"
#include "reference/arithmetic.h"
#include "reference/loops.h"

namespace lockstep::reference {
namespace {

constexpr int kMaxBlock = 16;
constexpr int kNothing = -100000;    // exponent of a term that does not count
constexpr int kSmallestExponent = -133;  // E is never below: the adder's grid ends there

struct MmaRule {
  int block;          // products a block
  int fraction_bits;  // F
};

MmaRule RuleOf(Profile profile) {
  switch (profile) {
    case Profile::kSm90:
      return {16, 25};
    case Profile::kSm90K8:
      return {8, 25};
    case Profile::kSm80:
    case Profile::kSm75:
      return {8, 24};
    case Profile::kSm70:
      return {4, 23};
    default:
      LOCKSTEP_CHECK(false && "profile has no integer MMA rule");
      return {};
  }
}

// value * 2^exponent, rounded toward zero to fp32.
float RoundTowardZero(std::int64_t value, int exponent) {
  std::uint64_t magnitude = static_cast<std::uint64_t>(value < 0 ? -value : value);
  if (magnitude == 0) return 0.0f;
  const int width = std::bit_width(magnitude);
  const int drop = std::max(width - 24, -149 - exponent);  // bits below the significand, or below the smallest subnormal
  if (drop > 0) {
    magnitude = drop < 64 ? magnitude >> drop : 0;
    exponent += drop;
  }
  const float result = std::ldexp(static_cast<float>(magnitude), exponent);
  return value < 0 && magnitude != 0 ? -result : result;
}

// One block: d = RZ32(sum of the terms truncated below 2^(E-F)). `shift_up` brings a product's significand to F fraction bits.
LOCKSTEP_CLONES
float IntegerBlock(float c, const std::int16_t* sa, const std::int16_t* ea, const std::int16_t* sb, const std::int16_t* eb, int count,
                   int shift_up, int fraction_bits) {
  if (std::isinf(c)) return c;
  std::int32_t product[kMaxBlock];
  std::int32_t exponent[kMaxBlock];
  std::int32_t top = kNothing;
  for (int i = 0; i < count; ++i) {
    product[i] = static_cast<std::int32_t>(sa[i]) * sb[i];
    exponent[i] = product[i] == 0 ? kNothing : ea[i] + eb[i];
    top = std::max(top, exponent[i]);
  }
  int c_exponent = kNothing;
  std::int64_t c_significand = 0;
  if (c != 0.0f) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(std::fabs(c));
    c_exponent = std::max<int>(static_cast<int>(bits >> 23), 1) - 127;
    c_significand = (bits & 0x7fffffu) | ((bits >> 23) ? 0x800000u : 0u);
    top = std::max(top, c_exponent);
  }
  top = std::max(top, kSmallestExponent);
  std::int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t magnitude = static_cast<std::uint32_t>(std::abs(product[i])) << shift_up;
    const std::int32_t shift = std::min(top - exponent[i], 31);
    const std::int64_t term = magnitude >> shift;
    sum += product[i] < 0 ? -term : term;
  }
  const int c_shift = std::min(top - c_exponent, 63);
  const std::int64_t c_term = (c_significand << (fraction_bits - 23)) >> c_shift;
  sum += c < 0 ? -c_term : c_term;
  return RoundTowardZero(sum, top - fraction_bits);
}

// Volta's block as the driver compiles it for newer cards: plain fp32 additions to nearest.
float JitBlock(float c, const Operands& a, std::int64_t ia, const Operands& b, std::int64_t ib, int count) {
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) {
    const float product = i < count ? a.Value(ia + i) * b.Value(ib + i) : 0.0f;
    sum = i == 0 ? product : sum + product;
  }
  return c + sum;
}

// Profile fma: 16 lanes, ascending k, halving fold.
LOCKSTEP_CLONES
float FmaLanes(const float* a, const float* b, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;
  float lane[kLanes] = {};
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t k = 0; k < whole; k += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lane[l] = std::fma(a[k + l], b[k + l], lane[l]);
  }
  for (std::int64_t k = whole; k < n; ++k) lane[k - whole] = std::fma(a[k], b[k], lane[k - whole]);
  return Fold(lane, kLanes);
}

}  // namespace

float Operands::Value(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return std::ldexp(static_cast<float>(significand[i]), exponent[i] - fraction_bits());
}

Operands MakeOperands(const float* values, std::int64_t n, OperandFormat format) {
  Operands operands;
  operands.format = format;
  operands.significand.resize(static_cast<std::size_t>(n));
  operands.exponent.resize(static_cast<std::size_t>(n));
  const int smallest = format == OperandFormat::kFp16 ? -14 : -126;
  const int drop = 23 - operands.fraction_bits();
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]);
    const int biased = static_cast<int>((bits >> 23) & 0xffu);
    LOCKSTEP_CHECK(biased != 255);
    std::int32_t significand = static_cast<std::int32_t>((bits & 0x7fffffu) | (biased ? 0x800000u : 0u));
    int exponent = std::max(biased, 1) - 127;
    const int extra = exponent < smallest ? std::min(smallest - exponent, 31) : 0;
    LOCKSTEP_CHECK((significand & ((std::int64_t{1} << std::min(drop + extra, 31)) - 1)) == 0);
    significand = drop + extra > 31 ? 0 : significand >> (drop + extra);
    exponent += extra;
    operands.significand[static_cast<std::size_t>(i)] = static_cast<std::int16_t>((bits >> 31) ? -significand : significand);
    operands.exponent[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(exponent);
  }
  return operands;
}

HRows MakeHRows(Profile profile, std::vector<float> values, OperandFormat format) {
  HRows rows;
  if (profile == Profile::kFma) {
    rows.values = std::move(values);
  } else {
    rows.operands = MakeOperands(values.data(), static_cast<std::int64_t>(values.size()), format);
  }
  return rows;
}

float ChainH(Profile profile, const HRows& a, std::int64_t a_begin, const HRows& b, std::int64_t b_begin, std::int64_t n) {
  if (profile == Profile::kFma) return FmaLanes(a.values.data() + a_begin, b.values.data() + b_begin, n);
  return MmaChain(profile, 0.0f, a.operands, a_begin, b.operands, b_begin, n);
}

float DotH(Profile profile, const float* a, const float* b, std::int64_t n) {
  return ChainH(profile, MakeHRows(profile, {a, a + n}, OperandFormat::kBf16), 0, MakeHRows(profile, {b, b + n}, OperandFormat::kBf16), 0, n);
}

float MmaChain(Profile profile, float c, const Operands& a, std::int64_t a_begin, const Operands& b, std::int64_t b_begin,
               std::int64_t n) {
  LOCKSTEP_CHECK(a.format == b.format);
  if (profile == Profile::kSm70Jit) {
    for (std::int64_t k = 0; k < n; k += 4) {
      c = JitBlock(c, a, a_begin + k, b, b_begin + k, static_cast<int>(std::min<std::int64_t>(4, n - k)));
    }
    return c;
  }
  const MmaRule rule = RuleOf(profile);
  const int shift_up = rule.fraction_bits - 2 * a.fraction_bits();
  for (std::int64_t k = 0; k < n; k += rule.block) {
    const int count = static_cast<int>(std::min<std::int64_t>(rule.block, n - k));
    c = IntegerBlock(c, a.significand.data() + a_begin + k, a.exponent.data() + a_begin + k, b.significand.data() + b_begin + k,
                     b.exponent.data() + b_begin + k, count, shift_up, rule.fraction_bits);
  }
  return c;
}

}  // namespace lockstep::reference
