// fold.h, segments.h and total_order.h against plain loops written from docs/numerics.md.
#include "kernels/contract/fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/contract/cpu_isa.h"
#include "kernels/contract/fold_probe.h"
#include "kernels/contract/segments.h"
#include "kernels/contract/total_order.h"
#include "model/float_formats.h"

namespace lockstep {
namespace {

std::uint32_t BitsOf(float f) { return std::bit_cast<std::uint32_t>(f); }

std::vector<float> RandomFloats(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (std::int64_t i = 0; i < n; ++i) {
    const float sign = random() % 2 ? 1.0f : -1.0f;
    values.push_back(sign * std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096.0f,
                                       static_cast<int>(random() % 24) - 12));
  }
  return values;
}

// The definition, literally.
float FoldByDefinition(std::vector<float> x) {
  while (!std::has_single_bit(x.size())) x.push_back(0.0f);
  for (std::size_t stride = x.size() / 2; stride > 0; stride /= 2) {
    for (std::size_t i = 0; i < stride; ++i) x[i] = x[i] + x[i + stride];
  }
  return x[0];
}

float DotByDefinition(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> lanes(128, 0.0f);
  for (std::size_t k = 0; k < a.size(); ++k) lanes[k % 128] = std::fma(a[k], b[k], lanes[k % 128]);
  return FoldByDefinition(lanes);
}

class FoldTest : public testing::TestWithParam<Isa> {
 protected:
  float DotF32(const std::vector<float>& a, const std::vector<float>& b) {
    return ForIsa(GetParam(), fold_probe::generic::DotF32, fold_probe::avx2::DotF32,
                  fold_probe::avx512::DotF32)(a.data(), b.data(), static_cast<std::int64_t>(a.size()));
  }
  float DotBF16(const std::vector<std::uint16_t>& a, const std::vector<float>& b) {
    return ForIsa(GetParam(), fold_probe::generic::DotBF16, fold_probe::avx2::DotBF16,
                  fold_probe::avx512::DotBF16)(a.data(), b.data(), static_cast<std::int64_t>(a.size()));
  }
};

TEST_P(FoldTest, DotFollowsTheDefinitionAtEveryLength) {
  for (std::int64_t n = 0; n < 520; ++n) {
    const std::vector<float> a = RandomFloats(n, 1 + static_cast<unsigned>(n));
    const std::vector<float> b = RandomFloats(n, 1000 + static_cast<unsigned>(n));
    ASSERT_EQ(BitsOf(DotF32(a, b)), BitsOf(DotByDefinition(a, b))) << n;
    std::vector<std::uint16_t> narrow;
    std::vector<float> widened;
    for (float x : a) {
      narrow.push_back(FloatToBF16(x));
      widened.push_back(RoundToBF16(x));
    }
    ASSERT_EQ(BitsOf(DotBF16(narrow, b)), BitsOf(DotByDefinition(widened, b))) << n;
  }
}

TEST_P(FoldTest, LanesBeyondTheEndAreLeftAlone) {
  // Lanes 100..127 hold -0 after 128 elements; a further fma of zeros would make them +0.
  std::vector<float> a(228, 0x1p-100f), b(228, -0x1p-100f);
  EXPECT_EQ(BitsOf(DotF32(a, b)), BitsOf(-0.0f));
  EXPECT_EQ(BitsOf(DotByDefinition(a, b)), BitsOf(-0.0f));
}

TEST_P(FoldTest, LatticeDotsAreExact) {
  std::mt19937 random(9);
  for (std::size_t n : {1, 31, 128, 500, 5120}) {
    std::vector<float> a, b;
    int sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const int x = static_cast<int>(random() % 33) - 16, y = static_cast<int>(random() % 33) - 16;
      a.push_back(static_cast<float>(x));
      b.push_back(static_cast<float>(y));
      sum += x * y;
    }
    EXPECT_EQ(DotF32(a, b), static_cast<float>(sum));
  }
}

TEST_P(FoldTest, FoldPadsWithZeros) {
  for (std::int64_t n = 1; n < 300; ++n) {
    std::vector<float> x = RandomFloats(n, static_cast<unsigned>(n));
    if (n % 3 == 0) std::fill(x.begin(), x.end(), -0.0f);
    const float expected = FoldByDefinition(x);
    const float got = ForIsa(GetParam(), fold_probe::generic::FoldInPlace, fold_probe::avx2::FoldInPlace,
                             fold_probe::avx512::FoldInPlace)(x.data(), n);
    ASSERT_EQ(BitsOf(got), BitsOf(expected)) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, FoldTest, testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(NameOf(isa.param)); });

TEST(SegmentsTest, ModelLengthsAreCutAtWholeBlocks) {
  const auto blocks = [](std::int64_t k) {
    std::vector<std::int64_t> counts;
    for (int s = 0; s < contract::kSegments; ++s) {
      const contract::SegmentRange range = contract::SegmentOf(k, s);
      counts.push_back((range.end - range.begin + 127) / 128);
    }
    return counts;
  };
  EXPECT_EQ(blocks(5120), (std::vector<std::int64_t>{10, 10, 10, 10}));
  EXPECT_EQ(blocks(2304), (std::vector<std::int64_t>{4, 5, 4, 5}));
  EXPECT_EQ(blocks(1280), (std::vector<std::int64_t>{2, 3, 2, 3}));
  EXPECT_EQ(blocks(256), (std::vector<std::int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(blocks(128), (std::vector<std::int64_t>{0, 0, 0, 1}));
}

TEST(SegmentsTest, SegmentsTileEveryLength) {
  for (std::int64_t k = 0; k < 3000; ++k) {
    std::int64_t expected_begin = 0;
    for (int s = 0; s < contract::kSegments; ++s) {
      const contract::SegmentRange range = contract::SegmentOf(k, s);
      ASSERT_EQ(range.begin, expected_begin);
      ASSERT_LE(range.begin, range.end);
      ASSERT_TRUE(range.end % 128 == 0 || range.end == k);
      expected_begin = range.end;
    }
    ASSERT_EQ(expected_begin, k);
  }
}

TEST(SegmentsTest, SumsFoldInPairs) {
  const float big = 0x1p24f;
  EXPECT_EQ(contract::FoldSegments(big, 1.0f, 1.0f, 1.0f), (big + 1.0f) + 2.0f);
  const float sum = contract::SumOverSegments(512, [](std::int64_t begin, std::int64_t end) {
    return end - begin == 128 ? static_cast<float>(begin) : NAN;
  });
  EXPECT_EQ(sum, 0.0f + 128.0f + 256.0f + 384.0f);
  EXPECT_EQ(contract::SumOverSegments(0, [](std::int64_t, std::int64_t) { return NAN; }), 0.0f);
}

TEST(TotalOrderTest, KeysAndComparisonAgreeWithTheDefinition) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-kInf, -3.0f,     -1.0f, -0x1p-149f, -0.0f,
                                     0.0f,  0x1p-149f, 1.0f,  1.0000001f, kInf};
  for (float a : values) {
    for (float b : values) {
      for (std::uint32_t i = 0; i < 3; ++i) {
        for (std::uint32_t j = 0; j < 3; ++j) {
          const bool expected = a > b || (a == b && i < j);
          EXPECT_EQ(contract::Precedes(a, i, b, j), expected);
          EXPECT_EQ(contract::RankKey(a, i) > contract::RankKey(b, j), expected) << a << " " << b;
        }
      }
      EXPECT_EQ(contract::OrderKey(a) < contract::OrderKey(b), a < b);
      EXPECT_EQ(contract::OrderKey(a) == contract::OrderKey(b), a == b);
    }
  }
}

TEST(TotalOrderTest, RankKeysSortLikeAStableDescendingSort) {
  std::mt19937 random(4);
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(static_cast<float>(random() % 50) - 25.0f);  // many ties
  std::vector<std::uint32_t> expected(values.size());
  std::iota(expected.begin(), expected.end(), 0u);
  std::stable_sort(expected.begin(), expected.end(), [&](auto i, auto j) { return values[i] > values[j]; });
  std::vector<std::uint64_t> keys;
  for (std::uint32_t i = 0; i < values.size(); ++i) keys.push_back(contract::RankKey(values[i], i));
  std::sort(keys.rbegin(), keys.rend());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(contract::IndexOfRankKey(keys[i]), expected[i]);
    EXPECT_EQ(contract::ValueOfRankKey(keys[i]), values[expected[i]]);
  }
}

TEST(TotalOrderTest, NanIsFound) {
  std::vector<float> values(9, 1.0f);
  EXPECT_FALSE(contract::AnyNan(values.data(), 9));
  values[8] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(contract::AnyNan(values.data(), 9));
  EXPECT_FALSE(contract::AnyNan(values.data(), 8));
}

}  // namespace
}  // namespace lockstep
