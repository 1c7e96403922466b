// mma_block.h against an H200's tensor cores (golden/oracles/mma), and its rule's consequences.
#include "kernels/contract/mma_block.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/contract/mma_oracle.h"
#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep {
namespace {

using contract::MmaAccumulate;
using contract::MmaBlock;
using contract::MmaDot;
using contract::MmaOperand;
using contract::MmaRule;

constexpr MmaRule kSm90{16, 25};

std::uint32_t BitsOf(float f) { return std::bit_cast<std::uint32_t>(f); }
Profile ProfileOf(const MmaRecord& record) {
  return record.block == 8 ? Profile::kSm90K8 : Profile::kSm90;
}

// Counts the outputs of `records` whose bits the profile's chain does not give.
struct Tally {
  int outputs = 0;
  int mismatches = 0;
};

template <class Chain>
Tally Compare(const std::vector<MmaRecord>& records, Chain chain) {
  Tally tally;
  for (const MmaRecord& record : records) {
    for (int i = 0; i < record.m; ++i) {
      const std::vector<MmaOperand> a = record.RowOfA(i);
      for (int j = 0; j < record.n; ++j) {
        const std::size_t at =
            static_cast<std::size_t>(i) * static_cast<std::size_t>(record.n) + static_cast<std::size_t>(j);
        const std::vector<MmaOperand> b = record.RowOfB(j);
        const float got = chain(record, record.c[at], a, b);
        const bool equal = BitsOf(got) == BitsOf(record.d[at]);
        ++tally.outputs;
        tally.mismatches += !equal;
        if (!equal && tally.mismatches < 5) {
          ADD_FAILURE() << "kind " << record.kind << " distribution " << record.distribution << " k "
                        << record.k << " row " << i << " column " << j << ": " << got << " instead of "
                        << record.d[at];
        }
      }
    }
  }
  return tally;
}

float HardwareChain(const MmaRecord& record, float c, const std::vector<MmaOperand>& a,
                    const std::vector<MmaOperand>& b) {
  return MmaAccumulate(ProfileOf(record), c, a.data(), b.data(), record.k);
}

TEST(MmaBlockOracleTest, AllH200OutputsAreReproduced) {
  const Tally tally = Compare(ReadMmaOracle(), HardwareChain);
  EXPECT_EQ(tally.outputs, 16000);
  EXPECT_EQ(tally.mismatches, 0);
}

TEST(MmaBlockOracleTest, H200EdgeCasesAreReproduced) {
  const Tally tally = Compare(ReadMmaEdgeOracle(), HardwareChain);
  EXPECT_GE(tally.outputs, 6 * 10 * 128);
  EXPECT_EQ(tally.mismatches, 0);
}

// The oracle is sharp enough to tell the profiles apart.
TEST(MmaBlockOracleTest, OtherFractionsAndBlocksAreRejected) {
  std::vector<MmaRecord> records = ReadMmaOracle();
  for (const MmaRule wrong : {MmaRule{16, 24}, MmaRule{16, 26}, MmaRule{8, 25}, MmaRule{4, 25}}) {
    int mismatches = 0;
    for (const MmaRecord& record : records) {
      if (record.block != 16) continue;
      for (int i = 0; i < record.m; ++i) {
        const std::vector<MmaOperand> a = record.RowOfA(i), b = record.RowOfB(0);
        float c = 0.0f;
        for (int k = 0; k < record.k; k += wrong.block) c = MmaBlock(wrong, c, a.data() + k, b.data() + k);
        mismatches +=
            BitsOf(c) != BitsOf(record.d[static_cast<std::size_t>(i) * static_cast<std::size_t>(record.n)]);
      }
    }
    EXPECT_GT(mismatches, 100) << "KB " << wrong.block << " F " << wrong.fraction_bits;
  }
}

TEST(MmaOperandTest, EveryFinitePatternIsItsValue) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    if (std::isfinite(F16ToFloat(narrow))) {
      const MmaOperand operand = contract::MmaOperandOfF16(narrow);
      ASSERT_EQ(BitsOf(operand.value), BitsOf(F16ToFloat(narrow)));
      ASSERT_EQ(std::ldexp(static_cast<float>(operand.significand), operand.exponent - 10), operand.value);
      ASSERT_GE(operand.exponent, -14);
    }
    if (std::isfinite(BF16ToFloat(narrow))) {
      const MmaOperand operand = contract::MmaOperandOfBF16(narrow);
      ASSERT_EQ(BitsOf(operand.value), BitsOf(BF16ToFloat(narrow)));
      ASSERT_EQ(std::ldexp(static_cast<float>(operand.significand), operand.exponent - 10), operand.value);
      ASSERT_GE(operand.exponent, -126);
    }
  }
}

std::vector<MmaOperand> Halves(const std::vector<float>& values) {
  std::vector<MmaOperand> operands(16);
  for (std::size_t i = 0; i < values.size(); ++i)
    operands[i] = contract::MmaOperandOfF16(FloatToF16(values[i]));
  return operands;
}

// Integers small enough for every partial sum to be exact: any order, any profile, plain arithmetic.
TEST(MmaBlockTest, LatticeInputsAreExactInEveryProfile) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const int n = 1 + static_cast<int>(random() % 200);
    std::vector<MmaOperand> a, b;
    int sum = static_cast<int>(random() % 2001) - 1000;
    const auto c = static_cast<float>(sum);
    int products = 0;
    for (int i = 0; i < n; ++i) {
      const int x = static_cast<int>(random() % 63) - 31, y = static_cast<int>(random() % 63) - 31;
      products += x * y;
      a.push_back(contract::MmaOperandOfBF16(FloatToBF16(static_cast<float>(x))));
      b.push_back(contract::MmaOperandOfF16(FloatToF16(static_cast<float>(y))));
    }
    for (Profile profile : kAllProfiles) {
      ASSERT_EQ(MmaAccumulate(profile, c, a.data(), b.data(), n), static_cast<float>(sum + products));
      ASSERT_EQ(MmaDot(profile, a.data(), b.data(), n), static_cast<float>(products));
    }
  }
}

TEST(MmaBlockTest, TermsBelowTheGridAreCutTowardZero) {
  // 2^0 sets the grid at 2^-25: 2^-26 is lost however often and with whatever sign it comes.
  EXPECT_EQ(MmaBlock(kSm90, 1.0f, Halves({0x1p-13f, 0x1p-13f}).data(), Halves({0x1p-13f, 0x1p-13f}).data()),
            1.0f);
  EXPECT_EQ(MmaBlock(kSm90, 1.0f, Halves({-0x1p-13f, -0x1p-13f}).data(), Halves({0x1p-13f, 0x1p-13f}).data()),
            1.0f);
  // 2^-25 is on the grid; a result just below 1 keeps 24 bits, which end at 2^-24.
  EXPECT_EQ(MmaBlock(kSm90, 1.0f, Halves({-0x1p-12f}).data(), Halves({0x1p-13f}).data()), 1.0f - 0x1p-24f);
}

TEST(MmaBlockTest, ZerosHaveNoSignAndNoExponent) {
  const std::vector<MmaOperand> zeros = Halves({-0.0f, 0.0f, -0.0f});
  const std::vector<MmaOperand> huge = Halves({65504.0f, -65504.0f, 65504.0f});
  EXPECT_EQ(BitsOf(MmaBlock(kSm90, -0.0f, zeros.data(), huge.data())), 0u);
  EXPECT_EQ(MmaBlock(kSm90, 0x1p-30f, zeros.data(), huge.data()), 0x1p-30f);
  EXPECT_EQ(BitsOf(MmaBlock(kSm90, 1.0f, Halves({-1.0f}).data(), Halves({1.0f}).data())), 0u);
}

TEST(MmaBlockTest, OverflowIsInfinity) {
  const float largest = 0x1.fffffep127f;
  const MmaOperand big = contract::MmaOperandOfBF16(FloatToBF16(0x1p52f));
  const MmaOperand minus_big = contract::MmaOperandOfBF16(FloatToBF16(-0x1p52f));
  std::vector<MmaOperand> a(16), b(16);
  a[0] = b[0] = big;  // 2^104: the last place of the largest float
  EXPECT_EQ(MmaBlock(kSm90, largest, a.data(), b.data()), HUGE_VALF);
  a[0] = minus_big;
  EXPECT_EQ(MmaBlock(kSm90, -largest, a.data(), b.data()), -HUGE_VALF);
  EXPECT_EQ(MmaBlock(kSm90, largest, a.data(), b.data()), 0x1.fffffcp127f);
}

TEST(MmaBlockTest, Sm70JitRoundsEveryAdditionToNearest) {
  const std::vector<float> x = {0.333251953125f, 1.5f, -2.75f, 1024.0f, 0.1f, 7.0f};
  const std::vector<float> y = {3.0f, 0.0001f, 5.0f, 0.999f, -0.7f, 0.3f};
  std::vector<MmaOperand> a, b;
  std::vector<float> products;
  for (std::size_t i = 0; i < x.size(); ++i) {
    a.push_back(contract::MmaOperandOfF16(FloatToF16(x[i])));
    b.push_back(contract::MmaOperandOfF16(FloatToF16(y[i])));
    products.push_back(RoundToF16(x[i]) * RoundToF16(y[i]));
  }
  float expected = 0.125f + (((products[0] + products[1]) + products[2]) + products[3]);
  expected = expected + (((products[4] + products[5]) + 0.0f) + 0.0f);
  EXPECT_EQ(MmaAccumulate(Profile::kSm70Jit, 0.125f, a.data(), b.data(), 6), expected);
}

TEST(MmaBlockTest, FmaProfileHasItsTwoOrders) {
  std::mt19937 random(11);
  std::vector<MmaOperand> a, b;
  std::vector<float> x, y;
  for (int i = 0; i < 100; ++i) {
    const auto p = static_cast<std::uint16_t>(0x3000 + random() % 0x1000),
               q = static_cast<std::uint16_t>(random() % 0x4400);
    a.push_back(contract::MmaOperandOfF16(p));
    b.push_back(contract::MmaOperandOfF16(q));
    x.push_back(F16ToFloat(p));
    y.push_back(F16ToFloat(q));
  }
  float running = 0.75f, lanes[16] = {};
  for (std::size_t i = 0; i < 100; ++i) {
    running = std::fma(x[i], y[i], running);
    lanes[i % 16] = std::fma(x[i], y[i], lanes[i % 16]);
  }
  const auto l = [&](int i) { return (lanes[i] + lanes[i + 8]) + (lanes[i + 4] + lanes[i + 12]); };
  EXPECT_EQ(MmaAccumulate(Profile::kFma, 0.75f, a.data(), b.data(), 100), running);
  EXPECT_EQ(MmaDot(Profile::kFma, a.data(), b.data(), 100), (l(0) + l(2)) + (l(1) + l(3)));
}

TEST(ProfileTest, NamesRoundTrip) {
  for (Profile profile : kAllProfiles) {
    Profile parsed;
    ASSERT_TRUE(ParseProfile(NameOf(profile), &parsed));
    EXPECT_EQ(parsed, profile);
  }
  Profile unused;
  EXPECT_FALSE(ParseProfile("sm95", &unused));
}

}  // namespace
}  // namespace lockstep
