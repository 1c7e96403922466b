// The router, every implementation, against the reference's contract arithmetic, bit for bit; and the distance
// of the weights from truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/router/router_cases.h"
#include "kernels/testing/comparison.h"
#include "kernels/testing/truth.h"
#include "reference/moe.h"

namespace lockstep::kernels {
namespace {

using reference::Contract;
using reference::Truth;

// Epsilon and normalization as a model of this family has them.
RouterCase V41(RouterCase c) {
  c.epsilon = 1e-20f;
  c.normalize = c.top_k > 1;
  return c;
}
RouterCase V4(RouterCase c) {
  c.epsilon = 0.0f;
  c.normalize = true;
  return c;
}

template <typename A>
reference::Routing<typename A::Real> RouteRow(const RouterProblem& p, std::int64_t t) {
  ModelConfig config;
  config.family = p.epsilon > 0 ? ModelFamily::kV41 : ModelFamily::kV4;
  config.hidden_size = static_cast<int>(p.hidden);
  config.n_routed_experts = p.experts;
  config.num_experts_per_tok = p.top_k;
  config.routed_scaling_factor = static_cast<double>(p.scaling);
  LayerWeights layer;
  if (p.hash) {
    layer.tid2eid = {.name = "tid2eid",
                     .file = "made.safetensors",
                     .dtype = DType::kI64,
                     .shape = {RouterProblem::kVocab, p.top_k},
                     .data = std::as_bytes(std::span(p.tid2eid))};
  }
  const std::vector<float> bias =
      p.hash ? std::vector<float>() : std::vector<float>(p.bias_X.begin(), p.bias_X.begin() + p.experts);
  const auto x = Widened<typename A::Real>(p.x_TE, t * p.hidden, p.hidden);
  return reference::Route<A>(config, layer, p.gate_XE, bias, p.ids[static_cast<std::size_t>(t)], x.data(), 0);
}

RouterProblem::Output ReferenceOf(const RouterProblem& p) {
  RouterProblem::Output expected = p.Start();
  for (std::int64_t t = 0; t < p.rows; ++t) {
    const reference::Routing<float> row = RouteRow<Contract>(p, t);
    std::copy(row.experts.begin(), row.experts.end(), std::get<0>(expected).begin() + t * p.top_k);
    std::copy(row.weights.begin(), row.weights.end(), std::get<1>(expected).begin() + t * p.top_k);
  }
  return expected;
}

void ExpectReference(const RouterCase& c) {
  const RouterProblem problem(c);
  ExpectEverywhere(problem, ReferenceOf(problem), Profile::kSm90,
                   std::to_string(c.rows) + " rows, " + std::to_string(c.experts) + " experts, top " +
                       std::to_string(c.top_k) + ", hidden " + std::to_string(c.hidden) + ", recipe " +
                       std::to_string(static_cast<int>(c.recipe)));
}

TEST(Router, HasTheBitsOfTheReference) {
  for (const Recipe recipe : kRecipes) {
    for (const int experts : {8, 16, 33, 256, 384, 1000}) {
      for (const int top_k : {1, 2, 6, 8}) {
        const RouterCase c = {.rows = 5,
                              .hidden = experts == 384 ? 1280 : 100 + top_k,
                              .experts = experts,
                              .top_k = top_k,
                              .recipe = recipe};
        ExpectReference(V41(c));
        ExpectReference(V4(c));
      }
    }
  }
}

TEST(Router, HasTheBitsOfTheReferenceInTheModelsSizes) {
  for (const auto& [name, shape] : ModelRouters()) ExpectReference(shape);
}

TEST(Router, OddSizes) {
  for (const std::int64_t hidden : {1, 15, 16, 17, 127, 128, 129, 5120}) {
    for (const std::int64_t rows : {1, 2, 17}) {
      ExpectReference(V41({.rows = rows, .hidden = hidden, .experts = 12, .top_k = 3}));
      ExpectReference(V41({.rows = rows, .hidden = hidden, .experts = 6, .top_k = 6}));
    }
  }
  ExpectReference(V4({.rows = 3, .hidden = 20, .experts = 1, .top_k = 1}));
  ExpectReference(V41({.rows = 3, .hidden = 64, .experts = 1024, .top_k = 64}));
}

// Tiles that rows and experts fill or do not, of lengths that come whole or not.
TEST(Router, ManyRows) {
  for (const std::int64_t rows : {24, 25, 47, 70}) {
    for (const std::int64_t hidden : {256, 384, 1280}) {
      for (const int experts : {16, 20, 390}) ExpectReference(V41({.rows = rows, .hidden = hidden, .experts = experts, .top_k = 6}));
    }
  }
}

TEST(Router, HashLayersTakeTheTablesExperts) {
  for (const int top_k : {1, 2, 6})
    ExpectReference(V4({.rows = 9, .hidden = 200, .experts = 64, .top_k = top_k, .hash = true}));
}

TEST(Router, EqualScoresGoToTheSmallerId) {
  for (const int top_k : {1, 3, 5}) {
    for (const Recipe recipe : {Recipe::kNormal, Recipe::kLattice}) {
      ExpectReference(
          V41({.rows = 7, .hidden = 48, .experts = 64, .top_k = top_k, .twins = true, .recipe = recipe}));
      // Nothing to tell experts apart: the first ones.
      RouterProblem p(V41({.rows = 2, .hidden = 16, .experts = 40, .top_k = top_k, .recipe = recipe}));
      std::fill_n(p.gate_XE.begin(), 40 * 16, 0.0f);
      std::fill_n(p.bias_X.begin(), 40, 0.0f);
      const RouterProblem::Output expected = ReferenceOf(p);
      for (std::int32_t i = 0; i < top_k; ++i) EXPECT_EQ(std::get<0>(expected)[static_cast<std::size_t>(i)], i);
      ExpectEverywhere(p, expected, Profile::kSm90, "no differences");
    }
  }
}

// The bias chooses; the weights do not have it.
TEST(Router, TheBiasOnlyChooses) {
  RouterProblem p(V41({.rows = 4, .hidden = 64, .experts = 32, .top_k = 4}));
  for (const std::size_t e : {3u, 17u, 30u, 31u}) p.bias_X[e] = 100.0f;
  const RouterProblem::Output expected = ReferenceOf(p);
  for (std::size_t t = 0; t < 4; ++t) {
    float sum = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::get<0>(expected)[4 * t + i], (std::vector<int>{3, 17, 30, 31})[i]);
      sum += std::get<1>(expected)[4 * t + i];
    }
    EXPECT_NEAR(sum, p.scaling, 1e-5f);
  }
  ExpectEverywhere(p, expected, Profile::kSm90, "bias");
}

// Where the reference throws, kernels mark the row; the others are as ever.
TEST(Router, ANanMarksItsRowAlone) {
  for (const bool in_bias : {false, true}) {
    RouterProblem p(V41({.rows = 3, .hidden = 64, .experts = 20, .top_k = 4}));
    const RouterProblem::Output expected = ReferenceOf(p);
    if (in_bias)
      p.bias_X[11] = std::numeric_limits<float>::quiet_NaN();
    else
      p.x_TE[64 + 5] = kPoisonBF16;
    for (const Implementation& implementation : Implementations(Profile::kSm90)) {
      const auto [experts, weights] = RunOn(implementation, p);
      for (std::size_t i = 0; i < 12; ++i) {
        const bool marked = in_bias || i / 4 == 1;
        EXPECT_EQ(experts[i], marked ? -1 : std::get<0>(expected)[i]) << implementation << ", place " << i;
        if (marked) continue;
        EXPECT_EQ(weights[i], std::get<1>(expected)[i]) << implementation << ", place " << i;
      }
    }
  }
}

// The reference's choice, its pairs by a stable sort; the mixing matrices by the operation that elementwise_test holds to the reference.
RouteProblem::Output ReferenceOf(const RouteProblem& p) {
  RouteProblem::Output expected = p.Start();
  const Implementation generic = Implementations(Profile::kSm90).front();
  generic.kernels().sinkhorn(generic.stream(), {std::get<10>(expected).data(), p.router.rows, p.streams, 20, 1e-6f});
  auto& [experts, weights, count, begin, active, num_active, token, weight, pair_of, nan, mix] = expected;
  std::tie(experts, weights) = ReferenceOf(p.router);
  const int all = p.router.experts, top_k = p.router.top_k;
  std::int32_t pair = 0, groups = 0;
  for (std::int32_t e = 0; e < all; ++e) {
    begin[static_cast<std::size_t>(e)] = pair;
    for (std::size_t i = 0; i < static_cast<std::size_t>(p.router.rows * top_k); ++i) {
      if (experts[i] != e) continue;
      token[static_cast<std::size_t>(pair)] = static_cast<std::int32_t>(i) / top_k;
      weight[static_cast<std::size_t>(pair)] = weights[i];
      pair_of[i] = pair++;
    }
    count[static_cast<std::size_t>(e)] = pair - begin[static_cast<std::size_t>(e)];
    if (count[static_cast<std::size_t>(e)] > 0) active[static_cast<std::size_t>(groups++)] = e;
  }
  count[static_cast<std::size_t>(all)] = static_cast<std::int32_t>(p.router.rows), begin[static_cast<std::size_t>(all)] = pair;
  active[static_cast<std::size_t>(groups++)] = all;
  num_active[0] = groups;
  for (std::int32_t t = 0; t < p.router.rows; ++t, ++pair) token[static_cast<std::size_t>(pair)] = t, weight[static_cast<std::size_t>(pair)] = 1.0f;
  return expected;
}

TEST(Route, IsTheReferencesChoiceAndItsPairs) {
  for (const std::int64_t rows : {1, 2, 7, 8, 40}) {
    for (const int experts : {8, 33, 256, 384, 600}) {
      for (const bool hash : {false, true}) {
        const RouteProblem p(V4({.rows = rows, .hidden = experts == 256 ? 4096 : 136, .experts = experts, .top_k = 6, .hash = hash}));
        ExpectEverywhere(p, ReferenceOf(p), Profile::kSm90, std::to_string(rows) + " rows, " + std::to_string(experts) + " experts" + (hash ? ", hash" : ""));
      }
    }
  }
}

// A hash layer may name an expert twice; a row of NaN has no pairs and raises the flag.
TEST(Route, OneRowWithAnExpertTwiceOrNone) {
  RouteProblem p(V4({.rows = 1, .hidden = 64, .experts = 20, .top_k = 4, .hash = true}));
  for (std::size_t i = 0; i < p.router.tid2eid.size(); ++i) p.router.tid2eid[i] = i % 4 < 2 ? 7 : 3;
  ExpectEverywhere(p, ReferenceOf(p), Profile::kSm90, "twice");
  p.router.x_TE[5] = kPoisonBF16;
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    const auto [experts, weights, count, begin, active, num_active, token, weight, pair_of, nan, mix] = RunOn(implementation, p);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(experts[i], -1);
      EXPECT_EQ(pair_of[i], 0);
    }
    for (std::size_t e = 0; e < 20; ++e) {
      EXPECT_EQ(count[e], 0);
      EXPECT_EQ(begin[e], 0);
    }
    EXPECT_EQ(num_active[0], 1);
    EXPECT_EQ(active[0], 20);
    EXPECT_EQ(begin[20], 4);
    EXPECT_EQ(nan[0], 1) << implementation;
  }
}

TEST(Router, WeightsAreNearTruth) {
  const RouterProblem p(V41({.rows = 20, .hidden = 1000, .experts = 64, .top_k = 6}));
  const auto [experts, weights] = RunOn(Implementations(Profile::kSm90).back(), p);
  EXPECT_TRUE(Trustworthy(weights, 20 * 6));
  std::vector<Approximation> expected;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    const reference::Routing<double> row = RouteRow<Truth>(p, t);
    const std::vector<double> x = Widened<double>(p.x_TE, t * p.hidden, p.hidden);
    double worst = 0;  // relative, of a score
    for (std::size_t i = 0; i < 6; ++i) {
      ASSERT_EQ(experts[static_cast<std::size_t>(t) * 6 + i], row.experts[i])
          << "a choice as thin as the rounding; take another seed";
      double terms = 0;
      for (std::int64_t k = 0; k < p.hidden; ++k)
        terms +=
            std::fabs(x[static_cast<std::size_t>(k)] *
                      static_cast<double>(p.gate_XE[static_cast<std::size_t>(row.experts[i] * p.hidden + k)]));
      // The logarithm of sqrt(softplus(z)) has a slope of at most a half.
      worst = std::max(worst, Gamma(reference::DepthF(p.hidden)) * terms / 2 + Gamma(kSqrtSoftplusRoundings));
    }
    // Score and sum, the sum's additions, division and product.
    for (const double w : row.weights) expected.push_back({w, w * (2 * worst + Gamma(p.top_k + 3))});
  }
  ExpectWithin(weights, expected, 1000);
}

TEST(RouterContract, IdIsTheSameEverywhere) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    EXPECT_EQ(implementation.kernels().router.contract, "router/F");
    EXPECT_EQ(implementation.kernels().route.contract, "route/F");
  }
}

}  // namespace
}  // namespace lockstep::kernels
