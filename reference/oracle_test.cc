// Whole forward passes in truth against logits that other programs computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "model/test_util.h"
#include "reference/engine.h"
#include "reference/testing/checkpoint_copy.h"
#include "reference/testing/oracle_files.h"

namespace lockstep::reference {
namespace {

// A float32 implementation of these models strays by about 1e-5; a wrong step anywhere by 1e-2 and more.
constexpr float kTolerance = 2e-4f;

std::vector<float> TruthLogits(const std::string& dir, bool fake_quant) {
  Options options;
  options.truth = true;
  options.numerics.fake_quant = fake_quant;
  const std::vector<std::int32_t> ids = ReadIds(dir);
  return MakeEngine(OpenShared(dir), options)->NewSession()->Append(ids, static_cast<std::int64_t>(ids.size()));
}

// Largest difference at each position.
std::vector<float> DifferenceByPosition(const std::vector<float>& got, const std::vector<float>& expected,
                                        std::size_t positions) {
  EXPECT_EQ(got.size(), expected.size());
  std::vector<float> worst(positions, 0.0f);
  const std::size_t vocab = got.size() / positions;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    worst[i / vocab] = std::max(worst[i / vocab], std::fabs(got[i] - expected[i]));
  }
  return worst;
}

std::vector<float> DifferenceToOracle(const std::string& dir, const std::string& logits_file, bool fake_quant) {
  return DifferenceByPosition(TruthLogits(dir, fake_quant), ReadFileAs<float>(dir + "/" + logits_file),
                              ReadIds(dir).size());
}

void ExpectWithinTolerance(const std::vector<float>& difference) {
  ASSERT_FALSE(difference.empty());
  const auto worst = std::max_element(difference.begin(), difference.end());
  EXPECT_LE(*worst, kTolerance) << "at position " << worst - difference.begin();
  testing::Test::RecordProperty("worst_difference", std::to_string(*worst));
}

// --- every oracle of golden/oracles --------------------------------------------------------------------------

struct OracleCase {
  std::string name;
  std::string dir;
  std::string logits;
  bool fake_quant;
};

class TruthOracleTest : public testing::TestWithParam<OracleCase> {};

TEST_P(TruthOracleTest, LogitsAgree) {
  const OracleCase& c = GetParam();
  ExpectWithinTolerance(DifferenceToOracle(OraclePath(c.dir), c.logits, c.fake_quant));
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, TruthOracleTest,
                         testing::Values(OracleCase{"HfV4a", "hf-v4-a", "logits.f32", false},
                                         OracleCase{"HfV4b", "hf-v4-b", "logits.f32", false}),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(NumpyV41, TruthOracleTest,
                         testing::Values(OracleCase{"One", "numpy-v41-1", "logits.f32", false},
                                         OracleCase{"Two", "numpy-v41-2", "logits.f32", false},
                                         OracleCase{"Three", "numpy-v41-3", "logits.f32", false},
                                         OracleCase{"OneKvQuant", "numpy-v41-1", "logits-kvquant.f32", true},
                                         OracleCase{"TwoKvQuant", "numpy-v41-2", "logits-kvquant.f32", true},
                                         OracleCase{"ThreeKvQuant", "numpy-v41-3", "logits-kvquant.f32", true}),
                         [](const auto& param) { return param.param.name; });

// The oracle that a clone of the project need not have.
TEST(TruthOracleHfV42Test, LogitsAgree) {
  const std::string dir = OptionalOraclePath("hf-v4-2");
  if (!std::filesystem::exists(dir)) {
    std::cout << "SKIPPED: ../shared/oracles/hf-v4-2 is not there\n";
    return;
  }
  ExpectWithinTolerance(DifferenceToOracle(dir, "logits.f32", false));
}

// --- hf-v4-1 -------------------------------------------------------------------------------------------------

// In layer 4 at position 136 three entries with score 0 compete for two places. Which two win in the library's
// top-k depends on how it partitions the other scores, and there on the order of entries 3 and 5, whose scores
// differ by 1.3e-6 of their size: less than float32 rounding moves them. Position 136 feels it directly, 137 to
// 151 through the window of 16 in layer 5, and positions from 255 on through entry 1 of layer 5, which pools
// positions 128 to 255 (ADR 0004).
constexpr std::size_t kThinTie = 136, kWindowEnd = 152, kNextPooled = 255;

TEST(TruthOracleHfV41OneTest, LogitsAgreeWhereTheThinTieDoesNotReach) {
  const std::vector<float> difference = DifferenceToOracle(OraclePath("hf-v4-1"), "logits.f32", false);
  ASSERT_EQ(difference.size(), 397u);
  for (std::size_t p = 0; p < difference.size(); ++p) {
    const bool reached = (p >= kThinTie && p < kWindowEnd) || p >= kNextPooled;
    const float bound = !reached ? kTolerance : p == kThinTie ? 0.15f : p < kWindowEnd ? 0.02f : 1e-3f;
    EXPECT_LE(difference[p], bound) << "position " << p;
  }
}

// The proof of the comment above: a nudge of 1e-5 to one parameter of -0.19 orders entries 3 and 5 the other
// way, and everything agrees, at the thin tie and after it.
TEST(TruthOracleHfV41OneTest, LogitsAgreeEverywhereOnceTheThinTieFallsTheOtherWay) {
  const TestDirectory directory;
  const std::string nudged = directory.File("nudged");
  CopyCheckpoint(OraclePath("hf-v4-1"), nudged, {{"layers.4.attn.indexer.compressor.ape", AddToFirst(-1e-5f)}});
  ExpectWithinTolerance(DifferenceToOracle(nudged, "logits.f32", false));
}

// --- the tolerance can fail ----------------------------------------------------------------------------------

TEST(TruthOracleSensitivityTest, AOnePercentChangeOfOneSinkIsSeen) {
  const TestDirectory directory;
  const std::string changed = directory.File("changed");
  CopyCheckpoint(OraclePath("hf-v4-a"), changed, {{"layers.1.attn.attn_sink", AddToFirst(0.01f)}});
  const std::vector<float> difference = DifferenceToOracle(changed, "logits.f32", false);
  EXPECT_GT(*std::max_element(difference.begin(), difference.end()), kTolerance);
}

TEST(TruthOracleSensitivityTest, QuantizersOffAreNotQuantizersOn) {
  const std::vector<float> difference =
      DifferenceToOracle(OraclePath("numpy-v41-1"), "logits-kvquant.f32", false);
  EXPECT_GT(*std::max_element(difference.begin(), difference.end()), 100 * kTolerance);
}

}  // namespace
}  // namespace lockstep::reference
