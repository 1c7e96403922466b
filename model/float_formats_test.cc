// Every format against an independent definition: the value of each code from its fields in double, and
// rounding as a search for the nearest code in that table, ties to the even code.
#include "model/float_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Non-negative code -> value, from sign-less fields: `mantissa_bits` below an exponent with that bias.
double ValueOfFields(unsigned code, int mantissa_bits, int bias) {
  const int exponent = static_cast<int>(code >> mantissa_bits);
  const int mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// A format's finite non-negative values by code, and what it does beyond the largest.
struct Table {
  std::vector<double> values;
  unsigned sign_bit;
  // Code for values that round past the last finite one; the next value in the sequence decides where that
  // begins. None for formats whose encoder takes clamped input only.
  bool has_overflow = false;
  double next_value = 0;
};

Table MakeTable(unsigned codes, int mantissa_bits, int bias, unsigned sign_bit, bool has_overflow) {
  Table table{.values = {}, .sign_bit = sign_bit, .has_overflow = has_overflow};
  for (unsigned code = 0; code < codes; ++code)
    table.values.push_back(ValueOfFields(code, mantissa_bits, bias));
  table.next_value = ValueOfFields(codes, mantissa_bits, bias);
  return table;
}

const Table& F16Table() {
  static const Table table = MakeTable(0x7c00, 10, 15, 0x8000, true);
  return table;
}
const Table& BF16Table() {
  static const Table table = MakeTable(0x7f80, 7, 127, 0x8000, true);
  return table;
}
const Table& E4M3Table() {
  static const Table table = MakeTable(0x7f, 3, 7, 0x80, false);
  return table;
}
const Table& E2M1Table() {
  static const Table table = MakeTable(8, 1, 1, 8, false);
  return table;
}

// Nearest code, ties to even, by search. The first code past the table stands for overflow.
unsigned NearestCode(const Table& table, float value) {
  const unsigned sign = std::signbit(value) ? table.sign_bit : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto above = std::lower_bound(table.values.begin(), table.values.end(), magnitude);
  const auto high = static_cast<unsigned>(above - table.values.begin());
  const double high_value = above == table.values.end() ? table.next_value : *above;
  if (high_value == magnitude || high == 0) return sign | high;
  if (magnitude > high_value) return sign | high;
  const double to_low = magnitude - table.values[high - 1], to_high = high_value - magnitude;
  if (to_low != to_high) return sign | (to_low < to_high ? high - 1 : high);
  return sign | (high % 2 == 0 ? high : high - 1);
}

// The floats at and next to every value of the table and every midpoint, both signs, within the encoder's
// domain.
std::vector<float> InterestingFloats(const Table& table) {
  std::vector<float> floats;
  const auto add = [&](double value) {
    const float center = static_cast<float>(value);
    ASSERT_EQ(static_cast<double>(center), value) << "a midpoint that is not a float";
    for (const float f : {center, std::nextafterf(center, 0.0f), std::nextafterf(center, INFINITY)}) {
      if (!table.has_overflow && f > table.values.back()) continue;
      floats.push_back(f);
      floats.push_back(-f);
    }
  };
  for (std::size_t i = 0; i < table.values.size(); ++i) {
    add(table.values[i]);
    if (i + 1 < table.values.size()) add(table.values[i] + (table.values[i + 1] - table.values[i]) / 2);
  }
  if (table.has_overflow && table.next_value <= std::numeric_limits<float>::max()) {
    add(table.values.back() + (table.next_value - table.values.back()) / 2);
  }
  return floats;
}

template <typename Encode>
void ExpectNearest(const Table& table, Encode encode) {
  for (const float f : InterestingFloats(table)) ASSERT_EQ(unsigned{encode(f)}, NearestCode(table, f)) << f;
  std::mt19937 random(20240917);
  const double limit = table.has_overflow ? kInfinity : table.values.back();
  for (int i = 0; i < 1'000'000; ++i) {
    const float f = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(f) || std::fabs(f) > limit) continue;
    ASSERT_EQ(unsigned{encode(f)}, NearestCode(table, f)) << f;
  }
  // Bit patterns are spread over 254 octaves; these stay where the format has codes.
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const auto scale = static_cast<float>(std::min(table.values.back(), 1e30));
  for (int i = 0; i < 200'000; ++i) {
    const float f = scale * uniform(random) * std::ldexp(1.0f, -(i % 24));
    ASSERT_EQ(unsigned{encode(f)}, NearestCode(table, f)) << f;
  }
}

template <typename Decode>
void ExpectValues(const Table& table, Decode decode) {
  for (unsigned code = 0; code < table.values.size(); ++code) {
    ASSERT_EQ(static_cast<double>(decode(code)), table.values[code]) << code;
    ASSERT_EQ(static_cast<double>(decode(code | table.sign_bit)), -table.values[code]) << code;
  }
  EXPECT_FALSE(std::signbit(decode(0u)));
  EXPECT_TRUE(std::signbit(decode(table.sign_bit)));
}

TEST(FloatFormats, F16DecodesEveryCode) {
  ExpectValues(F16Table(), [](unsigned code) { return F16ToFloat(static_cast<std::uint16_t>(code)); });
  EXPECT_EQ(F16ToFloat(0x7c00), INFINITY);
  EXPECT_EQ(F16ToFloat(0xfc00), -INFINITY);
  for (unsigned code = 0x7c01; code < 0x8000; ++code) {
    EXPECT_TRUE(std::isnan(F16ToFloat(static_cast<std::uint16_t>(code))));
    EXPECT_TRUE(std::isnan(F16ToFloat(static_cast<std::uint16_t>(code | 0x8000))));
  }
}

TEST(FloatFormats, BF16DecodesEveryCode) {
  ExpectValues(BF16Table(), [](unsigned code) { return BF16ToFloat(static_cast<std::uint16_t>(code)); });
  EXPECT_EQ(BF16ToFloat(0x7f80), INFINITY);
  EXPECT_EQ(BF16ToFloat(0xff80), -INFINITY);
  EXPECT_TRUE(std::isnan(BF16ToFloat(0x7fc0)));
}

TEST(FloatFormats, E4M3DecodesEveryCode) {
  ExpectValues(E4M3Table(), [](unsigned code) { return E4M3ToFloat(static_cast<std::uint8_t>(code)); });
  EXPECT_EQ(E4M3Table().values.back(), 448.0);
  EXPECT_TRUE(std::isnan(E4M3ToFloat(0x7f)));
  EXPECT_TRUE(std::isnan(E4M3ToFloat(0xff)));
}

TEST(FloatFormats, E2M1DecodesEveryCode) {
  ExpectValues(E2M1Table(), [](unsigned code) { return E2M1ToFloat(static_cast<std::uint8_t>(code)); });
  EXPECT_EQ(E2M1Table().values, (std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6}));
}

TEST(FloatFormats, E8M0DecodesEveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(E8M0ToFloat(static_cast<std::uint8_t>(code))), std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(E8M0ToFloat(255)));
}

TEST(FloatFormats, F16EncodesNearestTiesToEven) { ExpectNearest(F16Table(), FloatToF16); }
TEST(FloatFormats, BF16EncodesNearestTiesToEven) { ExpectNearest(BF16Table(), FloatToBF16); }
TEST(FloatFormats, E4M3EncodesNearestTiesToEven) { ExpectNearest(E4M3Table(), FloatToE4M3); }
TEST(FloatFormats, E2M1EncodesNearestTiesToEven) { ExpectNearest(E2M1Table(), FloatToE2M1); }

TEST(FloatFormats, EveryFiniteCodeSurvivesTheRoundTrip) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    if (!std::isnan(F16ToFloat(bits))) {
      ASSERT_EQ(FloatToF16(F16ToFloat(bits)), bits);
    }
    if (!std::isnan(BF16ToFloat(bits))) {
      ASSERT_EQ(FloatToBF16(BF16ToFloat(bits)), bits);
    }
  }
  for (unsigned code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    if (!std::isnan(E4M3ToFloat(bits))) {
      ASSERT_EQ(FloatToE4M3(E4M3ToFloat(bits)), bits);
    }
  }
  for (std::uint8_t code = 0; code < 16; ++code) ASSERT_EQ(FloatToE2M1(E2M1ToFloat(code)), code);
}

TEST(FloatFormats, NanStaysNanAndInfinityInfinity) {
  // Payloads whose top bits are all zero must not turn into infinity.
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(E4M3ToFloat(FloatToE4M3(nan)))) << std::hex << bits;
  }
  EXPECT_EQ(RoundToBF16(INFINITY), INFINITY);
  EXPECT_EQ(RoundToBF16(std::numeric_limits<float>::max()), INFINITY);
  EXPECT_EQ(RoundToF16(-INFINITY), -INFINITY);
}

TEST(FloatFormats, E2M1TiesOfTheOfficialQuantizer) {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float rounded[] = {0, 1, 1, 2, 2, 4, 4};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(E2M1ToFloat(FloatToE2M1(ties[i])), rounded[i]);
    EXPECT_EQ(E2M1ToFloat(FloatToE2M1(-ties[i])), -rounded[i]);
  }
  EXPECT_TRUE(std::signbit(E2M1ToFloat(FloatToE2M1(-0.0f))));
}

}  // namespace
}  // namespace lockstep
