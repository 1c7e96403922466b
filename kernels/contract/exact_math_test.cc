// exact_math.h against double libm, against its recorded digests, and build against build.
#include "kernels/contract/exact_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/contract/exact_math_digest.h"
#include "kernels/contract/exact_math_survey.h"
#include "kernels/contract/exp_below_zero.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kNan = 0x7fc00000u;

std::uint32_t BitsOf(float f) { return std::bit_cast<std::uint32_t>(f); }

const ElementaryInfo& InfoOf(Elementary id) { return kElementaryFunctions[static_cast<std::size_t>(id)]; }

nlohmann::json RecordedDigests() {
  const std::string path = std::string(LOCKSTEP_SOURCE_DIR) + "/golden/digests/exact_math.json";
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return nlohmann::json::parse(file);
}

// The exhaustive comparison takes a minute; here every 257th input, and all where results become subnormal and zero.
TEST(ExpBelowZero, HasTheBitsOfExp) {
  const auto expect_same = [](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    return BitsOf(contract::ExpBelowZero(x)) == BitsOf(contract::Exp(x));
  };
  std::uint64_t different = 0;
  for (std::uint64_t bits = 0x80000000u; bits <= BitsOf(-kInf); bits += 257) different += expect_same(static_cast<std::uint32_t>(bits)) ? 0 : 1;
  for (std::uint32_t bits = BitsOf(-87.0f); bits <= BitsOf(-111.0f); ++bits) different += expect_same(bits) ? 0 : 1;
  EXPECT_EQ(different, 0u);
  EXPECT_EQ(contract::ExpBelowZero(0.0f), 1.0f);
  EXPECT_EQ(contract::ExpBelowZero(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(contract::ExpBelowZero(std::numeric_limits<float>::quiet_NaN())));
}

class ExactMathTest : public testing::TestWithParam<Isa> {};

TEST_P(ExactMathTest, SampledDigestsEqualTheRecord) {
  const nlohmann::json recorded = RecordedDigests();
  for (const ElementaryInfo& f : kElementaryFunctions) {
    const Survey survey = SurveySamples(f, GetParam(), 0, contract::kSampledInputs);
    const std::string text = recorded.at(std::string(f.name)).at("sampled");
    EXPECT_EQ(survey.digest, std::stoull(text, nullptr, 16)) << f.name;
    EXPECT_EQ(survey.scalar_mismatches, 0u) << f.name;
  }
}

// Where results are special or subnormal, every input: around zero, around the overflows, around every change
// of rule.
TEST_P(ExactMathTest, VectorEqualsScalarInSpecialRanges) {
  const std::vector<float> centers = {0.0f,     0x1p-149f,  0x1p-126f, 0x1p-25f,  0.34657359f,
                                      1.0f,     16.635532f, 87.3365f,  88.72283f, 100.0f,
                                      103.972f, 110.0f,     0x1p22f,   0x1p23f};
  for (const ElementaryInfo& f : kElementaryFunctions) {
    for (float center : centers) {
      for (std::uint64_t sign : {0u, 0x80000000u}) {
        const std::uint64_t first = std::uint64_t{BitsOf(center)} & ~std::uint64_t{4095};
        const std::uint64_t before = first >= 4096 ? 4096 : 0;
        EXPECT_EQ(SurveyPatterns(f, GetParam(), (first - before) | sign, 8192).scalar_mismatches, 0u)
            << f.name << " near " << center;
      }
    }
    for (std::uint64_t first : {0x7f7ff000u, 0xff7ff000u, 0x7ffff000u, 0xfffff000u}) {  // infinities, NaNs
      EXPECT_EQ(SurveyPatterns(f, GetParam(), first, first == 0xfffff000u ? 4096 : 8192).scalar_mismatches, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, ExactMathTest, testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(NameOf(isa.param)); });

TEST(ExactMathLibmTest, ExpIsWithinOneUlp) {
  const ElementaryInfo& exp = InfoOf(Elementary::kExp);
  EXPECT_LE(SurveySamples(exp, BestIsa(), 0, contract::kSampledInputs).max_ulp, 1.0);
  // Every input with a subnormal result, and some before.
  const std::uint64_t first = BitsOf(-87.0f) & ~4095u;
  const std::uint64_t last = BitsOf(-104.0f) & ~4095u;
  EXPECT_LE(SurveyPatterns(exp, BestIsa(), first, last - first).max_ulp, 1.0);
}

TEST(ExactMathLibmTest, NoErrorExceedsTheRecord) {
  const nlohmann::json recorded = RecordedDigests();
  for (const ElementaryInfo& f : kElementaryFunctions) {
    const double limit = recorded.at(std::string(f.name)).at("max_ulp");
    EXPECT_LT(limit, 3.0) << f.name;
    EXPECT_LE(SurveySamples(f, BestIsa(), 0, contract::kSampledInputs).max_ulp, limit) << f.name;
  }
}

// The bound means something: a function that is off by two units in the last place breaks it.
TEST(ExactMathLibmTest, ErrorMeasureSeesAPerturbedFunction) {
  ElementaryInfo perturbed = InfoOf(Elementary::kExp);
  perturbed.libm = [](double x) { return std::exp(x) * (1.0 + 0x1p-22); };
  EXPECT_GT(SurveySamples(perturbed, BestIsa(), 0, contract::kSampledInputs).max_ulp, 1.0);
}

TEST(ExactMathScalarTest, ExpNeverDecreases) {
  const ElementaryInfo& exp = InfoOf(Elementary::kExp);
  EXPECT_EQ(CountDecreases(exp, BestIsa(), 0x1p-26f, 90.0f), 0u);
  EXPECT_EQ(CountDecreases(exp, BestIsa(), -105.0f, -0x1p-26f), 0u);
}

TEST(ExactMathScalarTest, DecreaseCounterSeesADecreasingFunction) {
  EXPECT_GT(CountDecreases(InfoOf(Elementary::kRsqrt), BestIsa(), 1.0f, 1.001f), 0u);
}

TEST(ExactMathScalarTest, NanGivesTheOneNan) {
  for (std::uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    const float x = std::bit_cast<float>(nan);
    EXPECT_EQ(BitsOf(contract::Exp(x)), kNan);
    EXPECT_EQ(BitsOf(contract::Sigmoid(x)), kNan);
    EXPECT_EQ(BitsOf(contract::Silu(x)), kNan);
    EXPECT_EQ(BitsOf(contract::Softplus(x)), kNan);
    EXPECT_EQ(BitsOf(contract::SqrtSoftplus(x)), kNan);
    EXPECT_EQ(BitsOf(contract::Rsqrt(x)), kNan);
  }
  EXPECT_EQ(BitsOf(contract::Silu(-kInf)), kNan);
  EXPECT_EQ(BitsOf(contract::Rsqrt(-1.0f)), kNan);
}

TEST(ExactMathScalarTest, ExpAtItsEnds) {
  EXPECT_EQ(BitsOf(contract::Exp(0.0f)), BitsOf(1.0f));
  EXPECT_EQ(BitsOf(contract::Exp(-0.0f)), BitsOf(1.0f));
  EXPECT_EQ(contract::Exp(kInf), kInf);
  EXPECT_EQ(BitsOf(contract::Exp(-kInf)), 0u);
  EXPECT_LT(contract::Exp(0x1.62e42ep6f), kInf);
  EXPECT_EQ(contract::Exp(0x1.62e430p6f), kInf);
  EXPECT_EQ(contract::Exp(std::numeric_limits<float>::max()), kInf);
  // e^-103.972 is just above half of the smallest subnormal, its neighbour just below.
  EXPECT_EQ(contract::Exp(-0x1.9fe368p6f), 0x1p-149f);
  EXPECT_EQ(BitsOf(contract::Exp(-0x1.9fe36ap6f)), 0u);
  EXPECT_EQ(BitsOf(contract::Exp(-std::numeric_limits<float>::max())), 0u);
}

TEST(ExactMathScalarTest, SigmoidAndSiluAtTheirEnds) {
  EXPECT_EQ(contract::Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(contract::Sigmoid(kInf), 1.0f);
  EXPECT_EQ(BitsOf(contract::Sigmoid(-kInf)), 0u);
  EXPECT_EQ(BitsOf(contract::Silu(0.0f)), 0u);
  EXPECT_EQ(contract::Silu(kInf), kInf);
  EXPECT_EQ(contract::Silu(100.0f), 100.0f);
  EXPECT_EQ(BitsOf(contract::Silu(-100.0f)), 0x80000000u);
}

TEST(ExactMathScalarTest, SoftplusKeepsItsNegativeTail) {
  for (float x : {-10.0f, -20.0f, -30.0f, -60.0f, -87.0f}) {
    const double expected = std::log1p(std::exp(static_cast<double>(x)));
    EXPECT_NEAR(contract::Softplus(x) / expected, 1.0, 2 * 0x1p-23) << x;
  }
  EXPECT_EQ(contract::Softplus(-100.0f), contract::Exp(-100.0f));
  EXPECT_EQ(contract::Softplus(100.0f), 100.0f);
  EXPECT_EQ(contract::Softplus(kInf), kInf);
  EXPECT_EQ(BitsOf(contract::Softplus(-kInf)), 0u);
}

TEST(ExactMathScalarTest, RsqrtIsTwoRoundings) {
  EXPECT_EQ(contract::Rsqrt(4.0f), 0.5f);
  EXPECT_EQ(contract::Rsqrt(0x1p-149f), 1.0f / std::sqrt(0x1p-149f));
  EXPECT_EQ(contract::Rsqrt(3.0f), 1.0f / std::sqrt(3.0f));
  EXPECT_EQ(contract::Rsqrt(0.0f), kInf);
  EXPECT_EQ(contract::Rsqrt(-0.0f), -kInf);
  EXPECT_EQ(contract::Rsqrt(kInf), 0.0f);
}

}  // namespace
}  // namespace lockstep
