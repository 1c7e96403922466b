#include "fast/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "model/error.h"

namespace lockstep::fast {
namespace {

std::vector<int> Draw(const std::vector<float>& logits, SamplingParams params, int draws) {
  std::vector<int> count(logits.size(), 0);
  for (int i = 0; i < draws; ++i) ++count[static_cast<std::size_t>(SampleToken(logits, params, {}, 0, i))];
  return count;
}

TEST(Sampler, GreedyTakesTheSmallestIdAmongEquals) {
  EXPECT_EQ(SampleToken(std::vector<float>{1, 3, 3, 2}, {}, {}, 0, 0), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  SamplingParams params;
  params.temperature = 0.5f;
  params.seed = 42;
  const std::vector<float> logits = {0.0f, 0.5f, 1.0f};
  constexpr int kDraws = 40000;
  const std::vector<int> count = Draw(logits, params, kDraws);
  double total = 0;
  for (float l : logits) total += std::exp(l / 0.5);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(logits[i] / 0.5) / total;
    EXPECT_NEAR(count[i], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << i;
  }
}

TEST(Sampler, LimitsCutTheTail) {
  const std::vector<float> logits = {5.0f, 4.0f, 3.0f, -2.0f};
  SamplingParams params;
  params.temperature = 10.0f;
  params.top_k = 2;
  std::vector<int> count = Draw(logits, params, 2000);
  EXPECT_GT(count[0] * count[1], 0);
  EXPECT_EQ(count[2] + count[3], 0);
  params.top_k = 0;
  params.top_p = 0.05f;  // the best alone reaches it
  count = Draw(logits, params, 500);
  EXPECT_EQ(count[0], 500);
  params.top_p = 1.0f;
  params.temperature = 1.0f;
  params.min_p = 0.2f;  // exp(-1) passes, exp(-2) does not
  count = Draw(logits, params, 2000);
  EXPECT_GT(count[0] * count[1], 0);
  EXPECT_EQ(count[2] + count[3], 0);
}

TEST(Sampler, PenaltiesLowerWhatWasSaid) {
  const std::vector<float> logits = {2.0f, 1.9f};
  const std::vector<std::int32_t> history = {0, 0};
  SamplingParams params;
  params.frequency_penalty = 0.06f;
  EXPECT_EQ(SampleToken(logits, params, history, 1, 2), 0);  // once in the generated part: 1.94
  EXPECT_EQ(SampleToken(logits, params, history, 2, 2), 1);  // twice: 1.88
  params = {};
  params.repetition_penalty = 1.1f;
  EXPECT_EQ(SampleToken(logits, params, history, 0, 2), 1);
}

TEST(Sampler, SeedAndPositionDecideAlone) {
  std::vector<float> logits(100);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  SamplingParams params;
  params.temperature = 1.0f;
  params.seed = 7;
  const std::int32_t token = SampleToken(logits, params, {}, 0, 5);
  EXPECT_EQ(SampleToken(logits, params, {}, 0, 5), token);
  int differ = 0;
  for (std::int64_t p = 0; p < 50; ++p) differ += SampleToken(logits, params, {}, 0, p) != token;
  EXPECT_GT(differ, 20);
}

TEST(Sampler, BadFieldsAreNamed) {
  SamplingParams params;
  params.top_p = 0.0f;
  try {
    CheckSampling(params);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("top_p"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::fast
