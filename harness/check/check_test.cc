// The matcher and the recorder themselves: what they call equal, and what they name.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "harness/check/same_bits_gtest.h"
#include "harness/check/trace_recorder.h"

namespace lockstep::harness {
namespace {

using Floats = std::vector<float>;

TEST(SameBitsTest, EqualBitsAreEqualEvenForNaN) {
  const Floats values = {1.0f, std::numeric_limits<float>::quiet_NaN(), -0.0f};
  EXPECT_TRUE(SameBits(values, values));
  EXPECT_TRUE(SameBits(Floats{}, Floats{}));
}

TEST(SameBitsTest, ZeroSignAndLastBitDiffer) {
  EXPECT_FALSE(SameBits(Floats{0.0f}, Floats{-0.0f}));
  EXPECT_FALSE(SameBits(Floats{std::nextafter(1.0f, 2.0f)}, Floats{1.0f}));
}

TEST(SameBitsTest, NamesFirstDifferenceWithBothValuesAndBits) {
  const auto difference = FindDifference(Floats{1.0f, 1.5f, 9.0f}, Floats{1.0f, 1.25f, 8.0f});
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->index, 1u);
  EXPECT_EQ(difference->Describe(), "element 1 is 1.5 (0x3fc00000), expected 1.25 (0x3fa00000)");
}

TEST(SameBitsTest, NamesSizes) {
  EXPECT_EQ(FindDifference(Floats{1.0f}, Floats{1.0f, 2.0f})->Describe(), "1 values, expected 2");
  EXPECT_EQ(FindDifference(Floats{}, Floats{2.0f})->index, 0u);
}

// A reference run of two layers over two positions.
void RecordRun(TraceRecorder* recorder) {
  for (int layer = 0; layer < 2; ++layer) {
    for (std::int64_t p = 0; p < 2; ++p) recorder->OnStep(step::kQuery, layer, p, Floats{1.0f, 2.0f});
    for (std::int64_t p = 0; p < 2; ++p) recorder->OnStep(step::kAttnOut, layer, p, Floats{3.0f});
  }
}

TEST(FirstDifferenceTest, EqualRunsHaveNone) {
  TraceRecorder a, b;
  RecordRun(&a);
  RecordRun(&b);
  EXPECT_FALSE(FirstDifference(a, b).has_value());
}

TEST(FirstDifferenceTest, FollowsTheReferencesOrder) {
  TraceRecorder reference, other;
  RecordRun(&reference);
  // Chunked: position 1 comes after all layers of position 0. Wrong in layer 0 at position 1, and in layer 1 at
  // position 0.
  for (std::int64_t p = 0; p < 2; ++p) {
    for (int layer = 0; layer < 2; ++layer) {
      other.OnStep(step::kQuery, layer, p, Floats{1.0f, layer + p == 1 ? 7.0f : 2.0f});
      other.OnStep(step::kAttnOut, layer, p, Floats{3.0f});
    }
  }
  const auto difference = FirstDifference(reference, other);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->Describe(),
            "q of layer 0, position 1: element 1 is 7 (0x40e00000), expected 2 (0x40000000)");
}

TEST(FirstDifferenceTest, StepsOfOneRunOnlyDoNotCount) {
  TraceRecorder reference, other;
  RecordRun(&reference);
  other.OnStep(step::kQuery, 0, 0, Floats{1.0f, 2.0f});
  other.OnStep(step::kFfnOut, 0, 0, Floats{5.0f});
  EXPECT_FALSE(FirstDifference(reference, other).has_value());
}

TEST(FirstDifferenceTest, OneOfSeveralReportsMustAgree) {
  TraceRecorder reference, other;
  reference.OnStep(step::kCompressed, 2, 5, Floats{1.0f});
  other.OnStep(step::kCompressed, 2, 5, Floats{4.0f});
  EXPECT_EQ(FirstDifference(reference, other)->Describe(),
            "compressed of layer 2, entry 5: element 0 is 4 (0x40800000), expected 1 (0x3f800000)");
  other.OnStep(step::kCompressed, 2, 5, Floats{1.0f});
  EXPECT_FALSE(FirstDifference(reference, other).has_value());
}

TEST(TraceRecorderTest, KeepsOnlyTheStepAskedFor) {
  TraceRecorder recorder{std::string(step::kAttnOut)};
  RecordRun(&recorder);
  ASSERT_EQ(recorder.order().size(), 4u);
  EXPECT_EQ(recorder.order()[0].step, step::kAttnOut);
  recorder.Clear();
  EXPECT_TRUE(recorder.order().empty());
}

}  // namespace
}  // namespace lockstep::harness
