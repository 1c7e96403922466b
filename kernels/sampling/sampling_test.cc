// Tokens against the contract's own words: sort, add up, walk. In whole numbers, so nothing here is a tolerance.
#include "kernels/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/sampling/sampling_cases.h"
#include "kernels/sampling/sampling_weight.h"
#include "kernels/testing/implementations.h"

namespace lockstep::kernels {
namespace {

std::int32_t Expected(const std::vector<float>& logits, const SamplingRow& row) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
  if (row.temperature == 0.0f) return order.front();
  const float best = logits[static_cast<std::size_t>(order.front())];
  const auto weight = [&](std::int32_t v) { return SamplingWeight(SamplingExponent(logits[static_cast<std::size_t>(v)], best, row), row); };
  if (row.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(row.top_k)));
  unsigned __int128 total = 0, kept = 0, sum = 0;
  for (const std::int32_t v : order) total += weight(v);
  const std::uint64_t nucleus = NucleusWeight(static_cast<std::uint64_t>(total), row.top_p);
  for (const std::int32_t v : order) kept += kept < nucleus ? weight(v) : 0;
  const unsigned __int128 drawn = kept * row.draw >> 53;
  for (const std::int32_t v : order) {
    if ((sum += weight(v)) > drawn) return v;
  }
  return -2;
}

std::vector<std::int32_t> Draws(const Implementation& implementation, const std::vector<float>& logits, const std::vector<SamplingRow>& rows) {
  constexpr std::int32_t kGuard = -77;
  std::vector<std::int32_t> out(rows.size() + 1, kGuard);
  CallMemory memory(implementation);
  SampleArgs args;
  args.logits_TV = memory.In(logits);
  args.rows = static_cast<std::int64_t>(rows.size());
  args.vocab = static_cast<std::int64_t>(logits.size() / rows.size());
  args.row_T = memory.In(rows);
  args.out_T = memory.InOut(out);
  implementation.kernels().sample(implementation.stream(), args);
  memory.Finish();
  EXPECT_EQ(out.back(), kGuard);
  out.pop_back();
  return out;
}

// Every way of drawing from rows of `vocab` logits, with draws at both ends and between, `times` over.
void CheckAllWays(std::int64_t vocab, float step, int times = 1) {
  std::mt19937_64 random(static_cast<unsigned>(vocab));
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  std::vector<std::int32_t> expected;
  const auto add = [&](SamplingRow way, std::uint64_t draw) {
    const std::vector<float> row = ModelLogits(vocab, static_cast<unsigned>(rows.size()), step);
    logits.insert(logits.end(), row.begin(), row.end());
    way.draw = draw;
    rows.push_back(way);
    expected.push_back(Expected(row, way));
  };
  for (int time = 0; time < times; ++time) {
    for (const auto& [name, way] : SamplingWays()) {
      for (const std::uint64_t draw : {std::uint64_t{0}, (std::uint64_t{1} << 53) - 1, random() >> 11, random() >> 11}) add(way, draw);
    }
  }
  for (const Implementation& implementation : Implementations(Profile::kSm90, 2)) EXPECT_EQ(Draws(implementation, logits, rows), expected) << implementation;
}

TEST(Sampling, DrawsWhatTheContractSays) {
  for (const std::int64_t vocab : {1, 2, 31, 1000, 4099, 129280}) CheckAllWays(vocab, 0.0f);
}

TEST(Sampling, DrawsFromMoreRowsThanADeviceHasProcessors) { CheckAllWays(700, 0.0f, 8); }

TEST(Sampling, TakesEqualLogitsByTheirIds) {
  for (const std::int64_t vocab : {7, 1500, 20000}) {
    CheckAllWays(vocab, 0.5f);
    CheckAllWays(vocab, 100.0f);  // all equal
  }
}

TEST(Sampling, SaysWhereALogitIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  constexpr std::int64_t kVocab = 3000;
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> good = ModelLogits(kVocab, 5);
    std::vector<float> logits = good;
    logits.insert(logits.end(), good.begin(), good.end());
    logits[kVocab + 2222] = bad;
    for (const float temperature : {0.0f, 1.0f}) {
      const SamplingRow row = {.temperature = temperature, .draw = 12345};
      for (const Implementation& implementation : Implementations(Profile::kSm90)) {
        EXPECT_EQ(Draws(implementation, logits, {row, row}), (std::vector<std::int32_t>{Expected(good, row), -1})) << implementation;
      }
    }
  }
}

TEST(Sampling, MultipliesDrawAndWeightExactly) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t draw = random() >> 11, kept = random() >> (7 + random() % 40);
    EXPECT_EQ(DrawnWeight(draw, kept), static_cast<std::uint64_t>(static_cast<unsigned __int128>(draw) * kept >> 53));
  }
}

}  // namespace
}  // namespace lockstep::kernels
