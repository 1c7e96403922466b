// Family F operations on rows, every implementation: the reference's contract arithmetic or, where the
// reference has no such entry point, the loops of docs/numerics.md section 6 once more, bit for bit; and the
// distance from truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/contract/exact_math.h"
#include "kernels/elementwise/elementwise_cases.h"
#include "kernels/testing/comparison.h"
#include "kernels/testing/truth.h"
#include "reference/arithmetic.h"
#include "reference/ops.h"

namespace lockstep::kernels {
namespace {

using reference::Contract;
using reference::Truth;

std::string Describe(std::int64_t rows, std::int64_t streams, std::int64_t hidden, Recipe recipe) {
  return std::to_string(rows) + " rows, " + std::to_string(streams) + " streams or heads, " +
         std::to_string(hidden) + " wide, recipe " + std::to_string(static_cast<int>(recipe));
}

template <typename Problem>
void ExpectEverywhere(const Problem& problem, const typename Problem::Output& expected,
                      const std::string& what) {
  ExpectEverywhere(problem, expected, Profile::kSm90, what);
}

// Puts n values as bf16 from element `begin` on.
template <typename Real>
void Store(const std::vector<Real>& values, std::int64_t begin, std::vector<std::uint16_t>* out) {
  for (std::size_t i = 0; i < values.size(); ++i)
    (*out)[static_cast<std::size_t>(begin) + i] = FloatToBF16(static_cast<float>(values[i]));
}

// --- embedding
// -------------------------------------------------------------------------------------------------------

TEST(Embed, CopiesTheRowToEveryStream) {
  for (const std::int64_t hidden : {1, 15, 16, 257, 1280}) {
    const EmbedProblem problem({.rows = 5, .streams = 4, .hidden = hidden, .recipe = Recipe::kSpiky});
    EmbedProblem::Output expected = problem.Start();
    for (std::int64_t i = 0; i < 5 * 4 * hidden; ++i) {
      const std::int64_t row = problem.ids[static_cast<std::size_t>(i / (4 * hidden))];
      std::get<0>(expected)[static_cast<std::size_t>(i)] =
          problem.table_VE[static_cast<std::size_t>(row * hidden + i % hidden)];
    }
    ExpectEverywhere(problem, expected, Describe(5, 4, hidden, Recipe::kSpiky));
  }
}

// --- RMSNorm
// ---------------------------------------------------------------------------------------------------------

std::vector<float> WeightOf(const RmsNormProblem& p) {
  return p.weighted ? std::vector<float>(p.weight.begin(), p.weight.begin() + p.n)
                    : std::vector<float>(static_cast<std::size_t>(p.n), 1.0f);
}

RmsNormProblem::Output ReferenceOf(const RmsNormProblem& p) {
  RmsNormProblem::Output expected = p.Start();
  for (std::int64_t t = 0; t < p.rows; ++t) {
    std::vector<float> x = Widened<float>(p.x, t * p.x_stride, p.n);
    reference::RmsNorm<Contract>(x.data(), WeightOf(p), static_cast<double>(RmsNormProblem::kEps), x.data());
    Store(x, t * p.y_stride, &std::get<0>(expected));
  }
  return expected;
}

TEST(RmsNorm, HasTheBitsOfTheReference) {
  for (const Recipe recipe : kRecipes) {
    for (const std::int64_t n : {1, 7, 16, 31, 127, 128, 129, 512, 1000, 5120}) {
      for (const std::int64_t rows : {1, 3, 17}) {
        const RmsNormProblem problem(
            {.rows = rows, .n = n, .recipe = recipe, .weighted = n % 2 == 0, .in_place = rows == 3});
        ExpectEverywhere(problem, ReferenceOf(problem), Describe(rows, 1, n, recipe));
      }
    }
  }
}

// Aligned rows of the lengths that devices treat apart, few and many of them.
TEST(RmsNorm, HasTheBitsOfTheReferenceInAlignedRows) {
  for (const std::int64_t n : {4, 128, 500, 512, 516, 1024, 1280, 1536, 1540, 5120}) {
    for (const std::int64_t rows : {1, 3, 16, 17, 40}) {
      const RmsNormProblem problem({.rows = rows, .n = n, .weighted = rows != 3, .in_place = rows % 2 == 1, .gap = 4});
      ExpectEverywhere(problem, ReferenceOf(problem), Describe(rows, 1, n, Recipe::kNormal));
    }
  }
}

TEST(RmsNorm, IsNearTruth) {
  const RmsNormProblem p({.rows = 9, .n = 1000, .in_place = true});
  const auto output = RunOn(Implementations(Profile::kSm90).back(), p);
  const auto& y = std::get<0>(output);
  std::vector<Approximation> expected;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    std::vector<double> x = Widened<double>(p.x, t * p.x_stride, p.n);
    reference::RmsNorm<Truth>(x.data(), WeightOf(p), static_cast<double>(RmsNormProblem::kEps), x.data());
    // All terms of the sum are positive; the square root halves their error; two products.
    const double relative = Gamma((reference::DepthF(p.n) + 3) / 2 + kRsqrtRoundings + 2);
    for (const double value : x) expected.push_back(RoundedToBF16({value, relative * std::fabs(value)}));
  }
  std::vector<std::uint16_t> dense;
  for (std::int64_t t = 0; t < p.rows; ++t)
    dense.insert(dense.end(), y.begin() + t * p.y_stride, y.begin() + t * p.y_stride + p.n);
  EXPECT_TRUE(Trustworthy(dense, p.rows * p.n));
  ExpectWithin(dense, expected, 3);
}

// --- RoPE
// ------------------------------------------------------------------------------------------------------------

constexpr std::int64_t kPositions[] = {0, 1, 2, 127, 4096, 65535, 499999};

std::vector<float> CosSinOf(const reference::RopeTable& table) {
  std::vector<float> rows, cosine, sine;
  for (const std::int64_t position : kPositions) {
    table.CosSin(position, &cosine, &sine);
    rows.insert(rows.end(), cosine.begin(), cosine.end());
    rows.insert(rows.end(), sine.begin(), sine.end());
  }
  return rows;
}

TEST(Rope, HasTheBitsOfTheReferenceBothWays) {
  YarnConfig yarn;
  yarn.factor = 16;
  yarn.original_max_position_embeddings = 65536;
  for (const Recipe recipe : {Recipe::kNormal, Recipe::kSpiky}) {
    for (const int rope_dim : {2, 6, 32, 64}) {
      for (const int width : {rope_dim, rope_dim + 3, 128}) {
        for (const bool inverse : {false, true}) {
          const reference::RopeTable table(10000.0, inverse ? yarn : YarnConfig{}, rope_dim);
          const RopeProblem problem({.rows = 7,
                                     .heads = 3,
                                     .width = width,
                                     .rope_dim = rope_dim,
                                     .inverse = inverse,
                                     .recipe = recipe},
                                    CosSinOf(table));
          RopeProblem::Output expected = problem.Start();
          for (std::int64_t row = 0; row < 7 * 3; ++row) {
            std::vector<float> x = Widened<float>(problem.x, row * width, width);
            reference::ApplyRope<Contract>(
                table, kPositions[problem.positions[static_cast<std::size_t>(row / 3)]],
                inverse ? reference::RopeDirection::kInverse : reference::RopeDirection::kForward, x.data(),
                width);
            Store(x, row * width, &std::get<0>(expected));
          }
          ExpectEverywhere(problem, expected,
                           Describe(7, 3, width, recipe) + ", rope " + std::to_string(rope_dim));
        }
      }
    }
  }
}

TEST(NormRope, HasTheBitsOfTheReference) {
  const reference::RopeTable table(10000.0, YarnConfig{}, 64);
  for (const int width : {64, 66, 128, 200, 512, 516, 1024}) {
    for (const std::int64_t rows : {1, 7, 40}) {
      const NormRopeProblem problem({.rows = rows, .heads = 30, .width = width, .rope_dim = 64}, CosSinOf(table));
      NormRopeProblem::Output expected = problem.Start();
      for (std::int64_t row = 0; row < rows * 30; ++row) {
        std::vector<float> x = Widened<float>(problem.rope.x, row * width, width);
        reference::RmsNorm<Contract>(x.data(), std::vector<float>(static_cast<std::size_t>(width), 1.0f), static_cast<double>(RmsNormProblem::kEps), x.data());
        for (float& value : x) value = RoundToBF16(value);
        reference::ApplyRope<Contract>(table, kPositions[problem.rope.positions[static_cast<std::size_t>(row / 30)]], reference::RopeDirection::kForward, x.data(), width);
        Store(x, row * width, &std::get<0>(expected));
      }
      ExpectEverywhere(problem, expected, Describe(rows, 30, width, Recipe::kNormal));
    }
  }
}

// --- hyper-connections
// -----------------------------------------------------------------------------------------------

template <typename Problem>
ModelConfig ConfigOf(const Problem& p) {
  ModelConfig config;
  config.hc_mult = p.streams;
  config.hidden_size = static_cast<int>(p.hidden);
  config.rms_norm_eps = static_cast<double>(HcMixProblem::kRmsEps);
  config.hc_eps = static_cast<double>(HcMixProblem::kHcEps);
  return config;
}

template <typename A>
struct HcRow {
  std::vector<typename A::Real> pre, post, mix;
};

template <typename A>
HcRow<A> ReferenceOf(const HcMixProblem& p, std::int64_t row) {
  ModelConfig config = ConfigOf(p);
  config.hc_sinkhorn_iters = p.iterations;
  const std::int64_t width = p.streams * p.hidden;
  const reference::HcParameters site = {p.fn, p.base, p.scale, p.outputs()};
  const auto stream = Widened<typename A::Real>(p.stream_TSE, row * width, width);
  if (p.read_out) return {reference::HcReadOut<A>(config, site, stream.data()), {}, {}};
  auto [pre, post, mix] = reference::HcMix<A>(config, site, stream.data());
  return {pre, post, mix};
}

HcMixProblem::Output ReferenceOf(const HcMixProblem& p) {
  HcMixProblem::Output expected = p.Start();
  for (std::int64_t t = 0; t < p.rows; ++t) {
    const HcRow<Contract> row = ReferenceOf<Contract>(p, t);
    std::copy(row.pre.begin(), row.pre.end(), std::get<0>(expected).begin() + t * p.streams);
    std::copy(row.post.begin(), row.post.end(), std::get<1>(expected).begin() + t * p.streams);
    std::copy(row.mix.begin(), row.mix.end(), std::get<2>(expected).begin() + t * p.streams * p.streams);
  }
  return expected;
}

TEST(HcMix, HasTheBitsOfTheReference) {
  for (const Recipe recipe : kRecipes) {
    for (const int streams : {1, 2, 4, 5, 8}) {
      for (const std::int64_t hidden : {9, 64, 160, 513}) {
        for (const bool read_out : {false, true}) {
          const HcMixProblem p({{.rows = 3, .streams = streams, .hidden = hidden, .recipe = recipe},
                                read_out,
                                streams == 5 ? 1 : 20});
          ExpectEverywhere(p, ReferenceOf(p),
                           Describe(p.rows, streams, hidden, recipe) + (read_out ? ", read-out" : ""));
        }
      }
    }
  }
}

// Bound on the logits' error: dot, RMS scale, two products, a sum.
double LogitBound(const HcMixProblem& p, std::int64_t row, std::int64_t output) {
  const std::int64_t width = p.streams * p.hidden;
  const std::vector<double> u = Widened<double>(p.stream_TSE, row * width, width);
  double squares = 0, terms = 0;
  for (std::int64_t k = 0; k < width; ++k) {
    const double x = u[static_cast<std::size_t>(k)];
    squares += x * x;
    terms += std::fabs(x * static_cast<double>(p.fn[static_cast<std::size_t>(output * width + k)]));
  }
  const double r = 1.0 / std::sqrt(squares / static_cast<double>(width));
  const auto scale =
      static_cast<double>(p.scale[static_cast<std::size_t>(std::min<std::int64_t>(output / p.streams, 2))]);
  const double base = std::fabs(static_cast<double>(p.base[static_cast<std::size_t>(output)]));
  return Gamma(1.5 * reference::DepthF(width) + 1.5 + kRsqrtRoundings + 3) * (terms * r * scale + base);
}

TEST(HcMix, IsNearTruth) {
  const HcMixProblem p({{.rows = 6, .streams = 4, .hidden = 160}});
  const auto [pre, post, mix] = RunOn(Implementations(Profile::kSm90).back(), p);
  std::vector<Approximation> expected_pre, expected_post, expected_mix;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    const HcRow<Truth> row = ReferenceOf<Truth>(p, t);
    double worst_logit = 0;
    for (std::int64_t i = 0; i < p.outputs(); ++i) {
      const double logit = LogitBound(p, t, i);
      // The sigmoid's slope is at most a quarter.
      const double sigmoid = logit / 4 + Gamma(kSigmoidRoundings + 1);
      if (i < p.streams)
        expected_pre.push_back({row.pre[static_cast<std::size_t>(i)], sigmoid});
      else if (i < 2 * p.streams)
        expected_post.push_back({row.post[static_cast<std::size_t>(i - p.streams)], 2 * sigmoid});
      else
        worst_logit = std::max(worst_logit, logit);
    }
    // The logarithms of the row and column scales change by no more than their inputs do in a step of the
    // iteration, and each step adds the error of its matrix and of its own S + 2 roundings, the matrix one more
    // rounding a step.
    const double steps = 2.0 * p.iterations, own = p.streams + 2;
    const double softmax = 2 * worst_logit + Gamma(2 * kExpRoundings + own + 2);
    const double relative = std::expm1(2 * steps * (softmax + Gamma(own) + Gamma(steps)));
    for (const double value : row.mix) expected_mix.push_back({value, relative * value});
  }
  EXPECT_TRUE(Trustworthy(mix, p.rows * 16));
  ExpectWithin(pre, expected_pre, 1000);
  ExpectWithin(post, expected_post, 1000);
  ExpectWithin(mix, expected_mix, 100000);
}

template <typename A>
std::vector<typename A::Real> ReferenceOf(const HcCollapseNormProblem& p, std::int64_t row) {
  using Real = typename A::Real;
  const std::vector<Real> stream =
      Widened<Real>(p.stream_TSE, row * p.streams * p.hidden, p.streams * p.hidden);
  const std::vector<Real> pre(p.pre_TS.begin() + row * p.streams, p.pre_TS.begin() + (row + 1) * p.streams);
  std::vector<Real> x(static_cast<std::size_t>(p.hidden));
  reference::HcCollapse<A>(ConfigOf(p), stream.data(), pre, x.data());
  const std::vector<float> weight(p.weight.begin(), p.weight.begin() + p.hidden);
  reference::RmsNorm<A>(x.data(), weight, static_cast<double>(HcCollapseNormProblem::kEps), x.data());
  return x;
}

TEST(HcCollapseNorm, HasTheBitsOfTheReference) {
  for (const Recipe recipe : kRecipes) {
    for (const int streams : {1, 2, 4, 7}) {
      for (const std::int64_t hidden : {1, 16, 33, 128, 700, 5120}) {
        const HcCollapseNormProblem p({.rows = 4, .streams = streams, .hidden = hidden, .recipe = recipe});
        HcCollapseNormProblem::Output expected = p.Start();
        for (std::int64_t t = 0; t < p.rows; ++t)
          Store(ReferenceOf<Contract>(p, t), t * hidden, &std::get<0>(expected));
        ExpectEverywhere(p, expected, Describe(p.rows, streams, hidden, recipe));
      }
    }
  }
}

template <typename A>
std::vector<typename A::Real> ReferenceOf(const HcExpandProblem& p, std::int64_t row) {
  using Real = typename A::Real;
  std::vector<Real> stream = Widened<Real>(p.stream_TSE, row * p.streams * p.hidden, p.streams * p.hidden);
  const std::vector<Real> f = Widened<Real>(p.f_TE, row * p.hidden, p.hidden);
  const std::int64_t square = p.streams * p.streams;
  const reference::HcCoefficients<Real> coefficients = {
      .pre = {},
      .post = {p.post_TS.begin() + row * p.streams, p.post_TS.begin() + (row + 1) * p.streams},
      .mix = {p.mix_TSS.begin() + row * square, p.mix_TSS.begin() + (row + 1) * square}};
  reference::HcExpand<A>(ConfigOf(p), f.data(), coefficients, stream.data());
  return stream;
}

TEST(HcMix, HasTheBitsOfTheReferenceInTheModelsSizes) {
  for (const auto& [name, shape] : ModelStreams()) {
    const HcMixProblem p({shape});
    ExpectEverywhere(p, ReferenceOf(p), name);
  }
}

TEST(HcExpand, HasTheBitsOfTheReference) {
  for (const Recipe recipe : kRecipes) {
    for (const int streams : {1, 2, 4, 8}) {
      for (const std::int64_t hidden : {1, 15, 16, 33, 700, 5120}) {
        const HcExpandProblem p({.rows = 4, .streams = streams, .hidden = hidden, .recipe = recipe});
        HcExpandProblem::Output expected = p.Start();
        for (std::int64_t t = 0; t < p.rows; ++t)
          Store(ReferenceOf<Contract>(p, t), t * streams * hidden, &std::get<0>(expected));
        ExpectEverywhere(p, expected, Describe(p.rows, streams, hidden, recipe));
      }
    }
  }
}

// The sum over the picks in the given order, the shared expert last.
CombineProblem::Output ReferenceOf(const CombineProblem& p) {
  CombineProblem::Output expected = p.Start();
  for (std::int64_t t = 0; t < p.rows; ++t) {
    for (std::int64_t d = 0; d < p.hidden; ++d) {
      const auto y = [&](std::int64_t k) {
        const std::int64_t pair = p.pair_of[static_cast<std::size_t>(t * p.top_k + k)];
        return BF16ToFloat(p.expert_rows[static_cast<std::size_t>(pair * p.hidden + d)]);
      };
      float sum = y(0);
      for (int k = 1; k < p.top_k; ++k) sum = sum + y(k);
      const auto at = static_cast<std::size_t>(t * p.hidden + d);
      std::get<0>(expected)[at] = FloatToBF16(sum + BF16ToFloat(p.shared_TE[at]));
    }
  }
  return expected;
}

// The reference's steps one after the other.
HcSiteProblem::Output ReferenceOf(const HcSiteProblem& p) {
  HcSiteProblem::Output expected = p.Start();
  auto& [stream, x, pre, post, mix] = expected;
  HcCollapseNormProblem entered = p.entered;
  HcMixProblem site = p.site;
  HcExpandProblem left = p.left;
  if (p.top_k > 0) left.f_TE = std::get<0>(ReferenceOf(p.sum));
  for (std::int64_t t = 0; t < p.rows && p.leaves; ++t) Store(ReferenceOf<Contract>(left, t), t * p.streams * p.hidden, &stream);
  site.stream_TSE = entered.stream_TSE = stream;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    const HcRow<Contract> row = ReferenceOf<Contract>(site, t);
    std::copy(row.pre.begin(), row.pre.end(), pre.begin() + t * p.streams);
    std::copy(row.post.begin(), row.post.end(), post.begin() + t * p.streams);
    std::copy(row.mix.begin(), row.mix.end(), mix.begin() + t * p.streams * p.streams);
  }
  if (!p.pre_of_before) std::copy_n(pre.begin(), p.rows * p.streams, entered.pre_TS.begin());
  for (std::int64_t t = 0; t < p.rows; ++t) Store(ReferenceOf<Contract>(entered, t), t * p.hidden, &x);
  return expected;
}

TEST(HcSite, HasTheBitsOfTheReference) {
  for (const auto& [streams, hidden] : {std::pair<int, std::int64_t>{4, 128}, {4, 640}, {4, 1280}, {4, 4096}, {4, 5120}, {4, 300}, {2, 128}}) {
    for (const std::int64_t rows : {1, 3, 8, 9}) {
      if (rows == 9 && hidden > 640) continue;
      for (const bool leaves : {true, false}) {
        const HcSiteProblem p({{.rows = rows, .streams = streams, .hidden = hidden, .recipe = rows == 3 ? Recipe::kSpiky : Recipe::kNormal}, leaves, rows % 2 == 0});
        ExpectEverywhere(p, ReferenceOf(p), Describe(rows, streams, hidden, p.recipe) + (leaves ? "" : ", the first site"));
      }
    }
  }
}

TEST(HcSite, MakesTheSumThatTheSiteBeforeLeft) {
  for (const std::int64_t hidden : {128, 640, 4096, 300}) {
    for (const std::int64_t rows : {1, 2, 3, 9}) {
      if (rows == 9 && hidden > 640) continue;
      for (const int top_k : {1, 2, 6, 8}) {
        const HcSiteProblem p({{.rows = rows, .streams = 4, .hidden = hidden, .recipe = rows == 3 ? Recipe::kSpiky : Recipe::kNormal}, true, rows % 2 == 0, top_k});
        ExpectEverywhere(p, ReferenceOf(p), Describe(rows, 4, hidden, p.recipe) + ", picks " + std::to_string(top_k));
      }
    }
  }
}

// The mixing matrix in two calls: a site without iterations leaves the logits, sinkhorn the rest.
TEST(Sinkhorn, FinishesWhatASiteLeft) {
  for (const int streams : {2, 4, 8}) {
    for (const std::int64_t rows : {1, 5, 9}) {
      HcSiteProblem p({{.rows = rows, .streams = streams, .hidden = 128}, true, false});
      const HcSiteProblem::Output expected = ReferenceOf(p);
      const int iterations = std::exchange(p.site.iterations, 0);
      for (const Implementation& implementation : Implementations(Profile::kSm90, 2)) {
        HcSiteProblem::Output y = RunOn(implementation, p);
        CallMemory memory(implementation);
        implementation.kernels().sinkhorn(implementation.stream(), {memory.InOut(std::get<4>(y)), rows, streams, iterations, HcMixProblem::kHcEps});
        memory.Finish();
        EXPECT_TRUE(SameOutputs(y, expected)) << Describe(rows, streams, 128, Recipe::kNormal) << ", " << implementation;
      }
    }
  }
}

// Small integers: the sums are exact in every order, so truth rounded once has the same bits.
TEST(HcExpand, LatticeSumsAreTruth) {
  const HcExpandProblem p({.rows = 3, .streams = 4, .hidden = 100, .recipe = Recipe::kLattice});
  HcExpandProblem::Output expected = p.Start();
  for (std::int64_t t = 0; t < p.rows; ++t) Store(ReferenceOf<Truth>(p, t), t * 400, &std::get<0>(expected));
  ExpectEverywhere(p, expected, "lattice");
}

TEST(HcExpand, IsNearTruth) {
  const HcExpandProblem p({.rows = 4, .streams = 4, .hidden = 300});
  std::vector<Approximation> expected;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    const std::vector<double> truth = ReferenceOf<Truth>(p, t);
    const std::vector<double> old = Widened<double>(p.stream_TSE, t * 1200, 1200),
                              f = Widened<double>(p.f_TE, t * 300, 300);
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const std::size_t k = i / 300, d = i % 300;
      double terms = std::fabs(static_cast<double>(p.post_TS[static_cast<std::size_t>(t) * 4 + k]) * f[d]);
      for (std::size_t j = 0; j < 4; ++j)
        terms += std::fabs(static_cast<double>(p.mix_TSS[static_cast<std::size_t>(t) * 16 + j * 4 + k]) *
                           old[j * 300 + d]);
      expected.push_back(RoundedToBF16({truth[i], Gamma(5) * terms}));
    }
  }
  const auto [stream] = RunOn(Implementations(Profile::kSm90).back(), p);
  EXPECT_TRUE(Trustworthy(stream, 4 * 1200));
  ExpectWithin(stream, expected, 3);
}

// --- combine
// ---------------------------------------------------------------------------------------------------------

TEST(Combine, SumsInTheGivenOrderTheSharedExpertLast) {
  for (const Recipe recipe : kRecipes) {
    for (const int top_k : {1, 2, 6, 8}) {
      for (const std::int64_t hidden : {1, 16, 31, 700}) {
        const CombineProblem p({.rows = 5, .top_k = top_k, .hidden = hidden, .recipe = recipe});
        ExpectEverywhere(p, ReferenceOf(p), Describe(p.rows, top_k, hidden, recipe));
      }
    }
  }
}

// --- Engram gate
// -----------------------------------------------------------------------------------------------------

// Section 6, Engram, after the linear. Contract or truth.
template <typename A>
void GateStream(const typename A::Real* qk, const typename A::Real* key, const typename A::Real* value,
                std::int64_t n, typename A::Real* x) {
  using Real = typename A::Real;
  const Real eps = static_cast<Real>(EngramGateProblem::kEps), width = static_cast<Real>(n);
  const Real root = A::kTruth ? static_cast<Real>(1 / std::sqrt(static_cast<double>(n)))
                              : static_cast<Real>(static_cast<float>(1 / std::sqrt(static_cast<double>(n))));
  std::vector<Real> product;
  for (std::int64_t d = 0; d < n; ++d) product.push_back(x[d] * qk[d]);
  const Real dot = A::Dot(product.data(), key, n);
  const Real g =
      ((dot * A::Rsqrt(A::Dot(x, x, n) / width + eps)) * A::Rsqrt(A::Dot(key, key, n) / width + eps)) * root;
  const Real alpha = A::Sigmoid(std::copysign(std::sqrt(std::max(std::fabs(g), static_cast<Real>(1e-6))), g));
  for (std::int64_t d = 0; d < n; ++d) x[d] = A::Bf16(A::Fma(alpha, value[d], x[d]));
}

template <typename A>
std::vector<typename A::Real> ReferenceOf(const EngramGateProblem& p, std::int64_t row) {
  using Real = typename A::Real;
  std::vector<Real> stream = Widened<Real>(p.stream_TSE, row * p.streams * p.hidden, p.streams * p.hidden);
  const std::vector<Real> kv =
      Widened<Real>(p.kv, row * (p.streams + 1) * p.hidden, (p.streams + 1) * p.hidden);
  const std::vector<Real> qk(p.qk_SE.begin(), p.qk_SE.begin() + p.streams * p.hidden);
  for (std::int64_t s = 0; s < p.streams; ++s) {
    const std::int64_t at = s * p.hidden;
    GateStream<A>(qk.data() + at, kv.data() + at, kv.data() + p.streams * p.hidden, p.hidden,
                  stream.data() + at);
  }
  return stream;
}

TEST(EngramGate, HasTheBitsOfThePage) {
  for (const Recipe recipe : kRecipes) {
    for (const int streams : {1, 2, 4}) {
      for (const std::int64_t hidden : {1, 16, 33, 128, 700, 5120}) {
        const EngramGateProblem p({.rows = 4, .streams = streams, .hidden = hidden, .recipe = recipe});
        EngramGateProblem::Output expected = p.Start();
        for (std::int64_t t = 0; t < p.rows; ++t)
          Store(ReferenceOf<Contract>(p, t), t * streams * hidden, &std::get<0>(expected));
        ExpectEverywhere(p, expected, Describe(p.rows, streams, hidden, recipe));
      }
    }
  }
}

TEST(EngramGate, IsNearTruth) {
  constexpr std::int64_t kHidden = 500;
  const EngramGateProblem p({.rows = 6, .streams = 4, .hidden = kHidden});
  const auto [stream] = RunOn(Implementations(Profile::kSm90).back(), p);
  EXPECT_TRUE(Trustworthy(stream, 6 * 4 * kHidden));
  std::vector<Approximation> expected;
  for (std::int64_t t = 0; t < p.rows; ++t) {
    const std::vector<double> truth = ReferenceOf<Truth>(p, t);
    const std::vector<double> x = Widened<double>(p.stream_TSE, t * 4 * kHidden, 4 * kHidden),
                              kv = Widened<double>(p.kv, t * 5 * kHidden, 5 * kHidden);
    for (std::size_t s = 0; s < 4; ++s) {
      double dot = 0, terms = 0, xx = 0, kk = 0;
      for (std::size_t d = s * kHidden; d < (s + 1) * kHidden; ++d) {
        const double term = x[d] * static_cast<double>(p.qk_SE[d]) * kv[d];
        dot += term, terms += std::fabs(term), xx += x[d] * x[d], kk += kv[d] * kv[d];
      }
      const double norm = std::sqrt(static_cast<double>(kHidden)) / std::sqrt(xx * kk),
                   g = std::fabs(dot * norm);
      const double g_error = Gamma(2 * reference::DepthF(kHidden) + 3 + 2 * kRsqrtRoundings + 4) * terms * norm;
      // The root's slope at the smallest |g| that the error allows; where the sign may turn, the whole jump.
      const double low = std::max(g - g_error, 1e-6), high = std::max(g + g_error, 1e-6);
      const double root_error =
          (g > g_error ? std::sqrt(high) - std::sqrt(low) : 2 * std::sqrt(high)) + Gamma(1) * std::sqrt(high);
      const double alpha_error = root_error / 4 + Gamma(kSigmoidRoundings);
      for (std::size_t d = 0; d < kHidden; ++d) {
        const double value = std::fabs(kv[4 * kHidden + d]);
        expected.push_back(
            RoundedToBF16({truth[s * kHidden + d],
                           alpha_error * value + Gamma(1) * (value + std::fabs(x[s * kHidden + d]))}));
      }
    }
  }
  ExpectWithin(stream, expected, 3);
}

TEST(ElementwiseContract, IdsAreTheSameEverywhere) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    const KernelTable& table = implementation.kernels();
    EXPECT_EQ(table.embed.contract, "embed/F");
    EXPECT_EQ(table.rms_norm.contract, "rms_norm/F");
    EXPECT_EQ(table.rope.contract, "rope/F");
    EXPECT_EQ(table.norm_rope.contract, "norm_rope/F");
    EXPECT_EQ(table.hc_mix.contract, "hc_mix/F");
    EXPECT_EQ(table.sinkhorn.contract, "sinkhorn/F");
    EXPECT_EQ(table.hc_collapse_norm.contract, "hc_collapse_norm/F");
    EXPECT_EQ(table.hc_expand.contract, "hc_expand/F");
    EXPECT_EQ(table.hc_site.contract, "hc_site/F");
    EXPECT_EQ(table.combine.contract, "combine/F");
    EXPECT_EQ(table.engram_gate.contract, "engram_gate/F");
  }
}

}  // namespace
}  // namespace lockstep::kernels
