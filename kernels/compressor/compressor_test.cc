// Pooling of token groups, every implementation, against the loops of docs/numerics.md section 6, Compressor,
// over the whole sequence: where a step begins must not show. And the distance from truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/compressor/compressor_cases.h"
#include "kernels/testing/comparison.h"
#include "kernels/testing/truth.h"
#include "reference/arithmetic.h"

namespace lockstep::kernels {
namespace {

using reference::Contract;
using reference::Truth;

std::string Describe(const CompressorCase& c) {
  return "position " + std::to_string(c.position) + ", rows " + std::to_string(c.rows) + ", ratio " +
         std::to_string(c.ratio) + (c.overlap ? ", overlap" : "") + (c.ape ? ", ape" : "") + ", width " +
         std::to_string(c.width) + ", recipe " + std::to_string(static_cast<int>(c.recipe));
}

// What an entry's channel pools: value and gate of each token in ascending order.
template <typename Real>
struct Pooled {
  std::vector<Real> kv, gate;
};

template <typename Real>
Pooled<Real> TokensOf(const CompressorSequence& s, std::int64_t entry, std::int64_t channel) {
  Pooled<Real> tokens;
  const std::int64_t own = entry * s.ratio;
  const auto add = [&](std::int64_t token, std::int64_t c) {
    tokens.kv.push_back(static_cast<Real>(s.Kv(token, c)));
    tokens.gate.push_back(static_cast<Real>(s.Gate(token, c)));
  };
  for (std::int64_t t = own - s.ratio; s.overlap && entry > 0 && t < own; ++t) add(t, channel);
  for (std::int64_t t = own; t < own + s.ratio; ++t) add(t, channel + (s.overlap ? s.width : 0));
  return tokens;
}

template <typename A>
typename A::Real Pool(const Pooled<typename A::Real>& tokens) {
  using Real = typename A::Real;
  const Real top = *std::max_element(tokens.gate.begin(), tokens.gate.end());
  Real denominator = A::Exp(tokens.gate[0] - top), numerator = denominator * tokens.kv[0];
  for (std::size_t r = 1; r < tokens.kv.size(); ++r) {
    const Real e = A::Exp(tokens.gate[r] - top);
    denominator = denominator + e;
    numerator = A::Fma(e, tokens.kv[r], numerator);
  }
  return numerator / denominator;
}

CompressProblem::Output PageOf(const CompressProblem& p) {
  CompressProblem::Output expected = p.Start();
  for (std::int64_t i = 0; i < p.entries() * p.width; ++i) {
    const float value = Pool<Contract>(TokensOf<float>(p, p.first_entry() + i / p.width, i % p.width));
    std::get<0>(expected)[static_cast<std::size_t>(i)] = FloatToBF16(value);
  }
  return expected;
}

void ExpectPage(const CompressorCase& c) {
  const CompressProblem problem(c);
  ExpectEverywhere(problem, PageOf(problem), Profile::kSm90, Describe(c));
}

// Each ratio with the form that a model gives it, and the others.
std::vector<CompressorCase> Forms() {
  return {{.ratio = 2},
          {.ratio = 4, .overlap = true, .ape = true},
          {.ratio = 128, .ape = true},
          {.ratio = 1},
          {.ratio = 3, .overlap = true},
          {.ratio = 5, .ape = true, .more_slots = 7}};
}

TEST(Compress, HasTheBitsOfThePageWhereverTheStepBegins) {
  for (CompressorCase c : Forms()) {
    for (const Recipe recipe : kRecipes) {
      c.recipe = recipe;
      c.width = 20;
      for (const std::int64_t position :
           {0, 1, c.ratio - 1, c.ratio, c.ratio + 1, 3 * c.ratio - 1, 5 * c.ratio + 2}) {
        for (const std::int64_t rows : {1, 2, c.ratio, 2 * c.ratio + 1}) {
          c.position = position;
          c.rows = rows;
          ExpectPage(c);
        }
      }
    }
  }
}

TEST(Compress, HasTheBitsOfThePageInTheModelsSizes) {
  for (const auto& [name, shape] : ModelCompressors()) ExpectPage(shape);
}

// Where a launch has room for more entries than the step completes.
TEST(Compress, NoEntryGivesZeros) {
  const CompressProblem p({.position = 5, .rows = 9, .ratio = 4, .overlap = true, .ape = true, .width = 20});
  CompressProblem::Output expected = PageOf(p);
  std::fill_n(std::get<0>(expected).begin() + 20, 20, std::uint16_t{0});
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    CompressProblem::Output y = p.Start();
    CallMemory memory(implementation);
    CompressorArgs args = p.Place(memory, y);
    std::vector<PoolEntry> pool;
    for (std::int64_t i = 0; i < p.entries(); ++i) {
      pool.push_back({(p.first_entry() + i) * p.ratio, p.position, p.kOthersRows, memory.In(p.history)});
    }
    pool[1] = {};
    args.entry_N = memory.Own(std::move(pool));
    implementation.kernels().compress(implementation.stream(), args);
    memory.Finish();
    EXPECT_TRUE(SameOutputs(y, expected)) << implementation;
  }
}

TEST(Compress, AnyWidth) {
  for (CompressorCase c : Forms()) {
    for (const std::int64_t width : {1, 15, 16, 17, 127, 128, 129, 512}) {
      c.width = width;
      c.position = c.ratio + 1;
      c.rows = 3 * c.ratio;
      ExpectPage(c);
    }
  }
}

// Groups whose gates are all equal: the mean, exact for small integers and a power of two of them.
TEST(Compress, EqualGatesGiveTheMean) {
  for (const int ratio : {2, 4, 128}) {
    CompressProblem p({.rows = 4 * ratio, .ratio = ratio, .width = 40, .recipe = Recipe::kLattice});
    std::fill_n(p.step_gate.begin(), 4 * ratio * 40, -3.25f);
    CompressProblem::Output expected = p.Start();
    for (std::int64_t i = 0; i < 4 * 40; ++i) {
      double sum = 0;
      for (std::int64_t r = 0; r < ratio; ++r) sum += static_cast<double>(p.Kv(i / 40 * ratio + r, i % 40));
      std::get<0>(expected)[static_cast<std::size_t>(i)] = FloatToBF16(static_cast<float>(sum / ratio));
    }
    ExpectEverywhere(p, expected, Profile::kSm90, Describe(p));
  }
}

TEST(Compress, IsNearTruth) {
  for (CompressorCase c : Forms()) {
    c.rows = 6 * c.ratio;
    c.width = 50;
    const CompressProblem p(c);
    const auto [latent] = RunOn(Implementations(Profile::kSm90).back(), p);
    EXPECT_TRUE(Trustworthy(latent, p.entries() * p.width));
    std::vector<Approximation> expected;
    for (std::int64_t i = 0; i < p.entries() * p.width; ++i) {
      const Pooled<double> tokens = TokensOf<double>(p, p.first_entry() + i / p.width, i % p.width);
      const double top = *std::max_element(tokens.gate.begin(), tokens.gate.end());
      double weights = 0, terms = 0, spread = 0;
      for (std::size_t r = 0; r < tokens.kv.size(); ++r) {
        const double e = std::exp(tokens.gate[r] - top);
        weights += e;
        terms += e * std::fabs(tokens.kv[r]);
        spread = std::max(spread, top - tokens.gate[r]);
      }
      // Weights: the rounded difference and the exponential; both sums; the division.
      const double weight = Gamma(spread + kExpRoundings), sum = Gamma(static_cast<double>(tokens.kv.size()));
      expected.push_back(
          RoundedToBF16({Pool<Truth>(tokens), terms / weights * (2 * (weight + sum) + Gamma(1))}));
    }
    ExpectWithin(latent, expected, 3);
  }
}

TEST(StoreHistory, KeepsTheLastRowsThatFit) {
  for (CompressorCase c : Forms()) {
    for (const std::int64_t position : {0, 1, 3 * c.ratio + 1}) {
      for (const std::int64_t rows : {1, 2, c.ratio, 2 * c.ratio, 5 * c.ratio + 3}) {
        for (const std::int64_t width : {1, 33, 512}) {
          c.position = position;
          c.rows = rows;
          c.width = width;
          const StoreHistoryProblem p(c);
          StoreHistoryProblem::Output expected = p.Start();
          p.StoreTokens(position, position + rows, &std::get<0>(expected));
          ExpectEverywhere(p, expected, Profile::kSm90, Describe(c));
        }
      }
    }
  }
}

// A step's rows, stored, are the history that the next step pools from.
TEST(StoreHistory, FeedsTheNextStep) {
  for (CompressorCase c : Forms()) {
    c.width = 24;
    c.rows = 2 * c.ratio + 1;
    CompressorCase next = c;
    next.position = c.rows;
    next.rows = 2 * c.ratio;
    CompressProblem compress(next);
    const CompressProblem::Output expected = PageOf(compress);
    StoreHistoryProblem first(c);  // of the longer sequence
    first.step_kv = std::vector<float>(compress.kv.begin(), compress.kv.begin() + c.rows * c.channels());
    first.step_gate = std::vector<float>(compress.gate.begin(), compress.gate.begin() + c.rows * c.channels());
    first.ape_values = compress.ape_values;
    for (const Implementation& implementation : Implementations(Profile::kSm90)) {
      compress.history = std::get<0>(RunOn(implementation, first));
      EXPECT_TRUE(SameOutputs(RunOn(implementation, compress), expected))
          << Describe(next) << ", " << implementation;
    }
  }
}

TEST(CompressorContract, IdsAreTheSameEverywhere) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    EXPECT_EQ(implementation.kernels().compress.contract, "compress/F");
    EXPECT_EQ(implementation.kernels().store_history.contract, "store_history/F");
  }
}

}  // namespace
}  // namespace lockstep::kernels
