// Quantizers, RoPE, hyper-connections and norms against the published micro vectors, and contract against
// truth.
#include "reference/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/contract/exact_math.h"
#include "model/float_formats.h"
#include "reference/moe.h"
#include "reference/quantize.h"
#include "reference/selection.h"
#include "reference/testing/error_bounds.h"
#include "reference/testing/page_arithmetic.h"
#include "reference/testing/same_bits.h"
#include "reference/testing/test_inputs.h"

namespace lockstep::reference {
namespace {

// --- published micro vectors ---------------------------------------------------------------------------------

constexpr double kPrintedDigits = 5e-7;  // values printed with six or seven digits

YarnConfig PublishedYarn() {
  return {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_max_position_embeddings = 65536};
}

TEST(RopeMicroVectorTest, YarnFrequencies) {
  const double expected[32] = {1,
                               0.68765604,
                               0.4728708,
                               0.32517245,
                               0.2236068,
                               0.15376456,
                               0.10573712,
                               0.072710775,
                               0.050000001,
                               0.034382802,
                               0.02364354,
                               0.016258623,
                               0.01118034,
                               0.007688228,
                               0.0052868566,
                               0.0036355385,
                               0.0022656249,
                               0.0013968013,
                               8.4968971e-4,
                               5.0808198e-4,
                               2.9697778e-4,
                               1.6817999e-4,
                               9.0867843e-5,
                               4.5444234e-5,
                               1.9531251e-5,
                               5.3723124e-6,
                               3.6943034e-6,
                               2.5404097e-6,
                               1.7469282e-6,
                               1.2012856e-6,
                               8.260713e-7,
                               5.6805294e-7};
  const RopeTable table(160000, PublishedYarn(), 64);
  ASSERT_EQ(table.frequencies().size(), 32u);
  for (std::size_t j = 0; j < 32; ++j)
    EXPECT_NEAR(table.frequencies()[j], expected[j], expected[j] * 2e-7) << j;
}

TEST(RopeMicroVectorTest, PlainFrequencies) {
  const RopeTable table(10000, YarnConfig{}, 64);
  EXPECT_NEAR(table.frequencies()[1], 0.7498942, 5e-8);
  EXPECT_NEAR(table.frequencies()[31], 1.3335215e-4, 5e-12);
}

constexpr float kQuantizerInput[32] = {0.10009765625f, -0.25f,    0.30078125f,     1.703125f,
                                       -2.90625f,      3.296875f, 0.010009765625f, -0.0019989013671875f};

std::vector<float> FakeQuantized(void (*quantize)(float*)) {
  std::vector<float> x(kQuantizerInput, kQuantizerInput + 32);
  quantize(x.data());
  return x;
}

TEST(QuantizerMicroVectorTest, ActQuant8) {
  std::vector<float> expected = {0.1015625f, -0.25f, 0.3125f, 1.75f, -3.0f, 3.25f, 0.009765625f, -0.001953125f};
  expected.resize(32, 0.0f);
  EXPECT_TRUE(SameBits(FakeQuantized([](float* x) { FakeQuant8(x, 32, 32); }), expected));
  float codes[32];
  EXPECT_EQ(ActQuant8Block(kQuantizerInput, 32, codes), 0x1p-7f);
}

TEST(QuantizerMicroVectorTest, ActQuant4WithPowerOfTwoScale) {
  std::vector<float> expected = {0.0f, -0.0f, 0.5f, 1.5f, -3.0f, 3.0f, 0.0f, -0.0f};
  expected.resize(32, 0.0f);
  EXPECT_TRUE(SameBits(FakeQuantized([](float* x) { FakeQuant4(x, 32, 32, Fp4Scale::kE8M0); }), expected));
  float codes[32];
  EXPECT_EQ(ActQuant4Block(kQuantizerInput, 32, Fp4Scale::kE8M0, codes), 1.0f);
}

TEST(QuantizerMicroVectorTest, ActQuant4WithE4M3Scale) {
  std::vector<float> expected = {0.0f, -0.28125f, 0.28125f, 1.6875f, -3.375f, 3.375f, 0.0f, -0.0f};
  expected.resize(32, 0.0f);
  EXPECT_TRUE(SameBits(FakeQuantized([](float* x) { FakeQuant4(x, 32, 16, Fp4Scale::kE4M3); }), expected));
  float codes[32];
  EXPECT_EQ(ActQuant4Block(kQuantizerInput, 16, Fp4Scale::kE4M3, codes), 0.5625f);
}

// A site of one-channel streams that are all 1, so that m_i is column 0 of fn.
ModelConfig OneChannelConfig(int iterations) {
  ModelConfig config;
  config.hc_mult = 4;
  config.hidden_size = 1;
  config.hc_sinkhorn_iters = iterations;
  config.hc_eps = 1e-6;
  config.rms_norm_eps = 0;
  return config;
}

template <typename A>
HcCoefficients<typename A::Real> PublishedSite(int iterations = 20) {
  HcParameters site;
  site.rows = 24;
  for (int i = 0; i < 24; ++i)
    site.fn.insert(site.fn.end(), {static_cast<float>(std::sin(1.7 * i)), 0.0f, 0.0f, 0.0f});
  site.base.assign(24, 0.0f);
  site.scale = {1.0f, 1.0f, 3.0f};
  const std::vector<typename A::Real> stream(4, 1);
  return HcMix<A>(OneChannelConfig(iterations), site, stream.data());
}

template <typename Real>
void ExpectPublishedCoefficients(const HcCoefficients<Real>& got) {
  const double pre[] = {0.500001, 0.729418, 0.436461, 0.283776},
               post[] = {1.242150, 1.379302, 0.663680, 0.700411};
  const double mix[] = {0.193293, 0.695238, 0.092445, 0.019023, 0.472077, 0.244495, 0.143536, 0.139892,
                        0.281076, 0.049966, 0.254606, 0.414351, 0.053554, 0.010300, 0.509412, 0.426733};
  ASSERT_EQ(got.mix.size(), 16u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(got.pre[i], pre[i], 2 * kPrintedDigits);
    EXPECT_NEAR(got.post[i], post[i], 2 * kPrintedDigits);
  }
  for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(got.mix[i], mix[i], 2 * kPrintedDigits) << i;
}

TEST(HyperConnectionMicroVectorTest, TruthCoefficients) { ExpectPublishedCoefficients(PublishedSite<Truth>()); }
TEST(HyperConnectionMicroVectorTest, ContractCoefficients) {
  ExpectPublishedCoefficients(PublishedSite<Contract>());
}

// The last pass divides columns; a row pass at the end, a known mistake, would show before the passes converge.
TEST(HyperConnectionTest, ColumnsSumToOneAndRowsNotYet) {
  const HcCoefficients<double> site = PublishedSite<Truth>(2);
  double worst_row = 0;
  for (std::size_t line = 0; line < 4; ++line) {
    double column = 0, row = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      column += site.mix[i * 4 + line];
      row += site.mix[line * 4 + i];
    }
    EXPECT_NEAR(column, 1.0, 2e-6) << line;  // the divisor holds eps
    worst_row = std::max(worst_row, std::fabs(row - 1.0));
  }
  EXPECT_GT(worst_row, 1e-3);
}

// --- the bits of the page ------------------------------------------------------------------------------------

std::vector<float> Draw(std::int64_t n, Random& random) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(RoundToBF16(static_cast<float>(random.Normal())));
  return x;
}

TEST(RmsNormTest, HasTheBitsOfThePage) {
  Random random(26);
  for (const std::int64_t n : {32, 127, 512, 5120}) {
    const std::vector<float> x = Draw(n, random), w = Draw(n, random);
    std::vector<float> got(x.size()), expected;
    RmsNorm<Contract>(x.data(), w, 1e-6, got.data());
    const float r = contract::Rsqrt(page::DotF(x, x) / static_cast<float>(n) + 1e-6f);
    for (std::size_t i = 0; i < x.size(); ++i) expected.push_back(RoundToBF16((x[i] * r) * w[i]));
    EXPECT_TRUE(SameBits(got, expected)) << n;
  }
}

float SumAscending(const std::vector<float>& x) {
  float sum = x[0];
  for (std::size_t i = 1; i < x.size(); ++i) sum = sum + x[i];
  return sum;
}

// Every line (row or column) of c[S][S] becomes rule(line).
template <typename Rule>
void EachLine(std::vector<float>& c, std::size_t streams, bool rows, Rule rule) {
  for (std::size_t a = 0; a < streams; ++a) {
    const auto at = [&](std::size_t b) { return rows ? a * streams + b : b * streams + a; };
    std::vector<float> line;
    for (std::size_t b = 0; b < streams; ++b) line.push_back(c[at(b)]);
    line = rule(line);
    for (std::size_t b = 0; b < streams; ++b) c[at(b)] = line[b];
  }
}

std::vector<float> PageSinkhorn(std::vector<float> c, std::size_t streams, int iterations, float eps) {
  const auto divide = [eps](std::vector<float> line) {
    const float sum = SumAscending(line) + eps;
    for (float& value : line) value = value / sum;
    return line;
  };
  EachLine(c, streams, true, [eps](std::vector<float> line) {
    const float top = *std::max_element(line.begin(), line.end());
    for (float& value : line) value = contract::Exp(value - top);
    const float sum = SumAscending(line);
    for (float& value : line) value = value / sum + eps;
    return line;
  });
  EachLine(c, streams, false, divide);
  for (int i = 1; i < iterations; ++i) {
    EachLine(c, streams, true, divide);
    EachLine(c, streams, false, divide);
  }
  return c;
}

TEST(HyperConnectionTest, CoefficientsHaveTheBitsOfThePage) {
  Random random(27);
  const std::size_t streams = 4, width = 48;
  ModelConfig config;
  config.hc_mult = static_cast<int>(streams);
  config.hidden_size = static_cast<int>(width);
  config.hc_sinkhorn_iters = 20;
  config.hc_eps = 1e-6;
  config.rms_norm_eps = 1e-6;
  HcParameters site;
  site.rows = 24;
  site.fn = Draw(24 * 4 * 48, random);
  site.base = Draw(24, random);
  site.scale = {0.3f, 0.7f, 1.1f};
  const std::vector<float> u = Draw(static_cast<std::int64_t>(streams * width), random);
  const HcCoefficients<float> got = HcMix<Contract>(config, site, u.data());

  const float r = contract::Rsqrt(page::DotF(u, u) / static_cast<float>(u.size()) + 1e-6f);
  std::vector<float> m, pre, post, mix;
  for (std::size_t i = 0; i < 24; ++i)
    m.push_back(page::DotF(page::Floats(site.fn).subspan(i * u.size(), u.size()), u) * r);
  for (std::size_t i = 0; i < 4; ++i)
    pre.push_back(contract::Sigmoid(m[i] * site.scale[0] + site.base[i]) + 1e-6f);
  for (std::size_t i = 4; i < 8; ++i)
    post.push_back(2.0f * contract::Sigmoid(m[i] * site.scale[1] + site.base[i]));
  for (std::size_t i = 8; i < 24; ++i) mix.push_back(m[i] * site.scale[2] + site.base[i]);
  EXPECT_TRUE(SameBits(got.pre, pre));
  EXPECT_TRUE(SameBits(got.post, post));
  EXPECT_TRUE(SameBits(got.mix, PageSinkhorn(mix, streams, 20, 1e-6f)));
}

TEST(RouterTest, HasTheBitsOfThePage) {
  Random random(28);
  const int experts = 16, width = 160, chosen = 4;
  const std::vector<float> gate = Draw(experts * width, random), bias = Draw(experts, random);
  for (const ModelFamily family : {ModelFamily::kV4, ModelFamily::kV41}) {
    ModelConfig config;
    config.family = family;
    config.hidden_size = width;
    config.n_routed_experts = experts;
    config.num_experts_per_tok = chosen;
    config.routed_scaling_factor = 1.5;
    for (int repeat = 0; repeat < 20; ++repeat) {
      const std::vector<float> x = Draw(width, random);
      const Routing<float> got = Route<Contract>(config, LayerWeights{}, gate, bias, 0, x.data(), 0);
      std::vector<float> score;
      std::vector<std::pair<float, int>> order;
      for (int e = 0; e < experts; ++e) {
        const auto row =
            page::Floats(gate).subspan(static_cast<std::size_t>(e * width), static_cast<std::size_t>(width));
        score.push_back(std::sqrt(contract::Softplus(page::DotF(x, row))));
        order.emplace_back(-(score.back() + bias[static_cast<std::size_t>(e)]), e);
      }
      std::sort(order.begin(), order.end());
      std::vector<std::int32_t> ids;
      for (int i = 0; i < chosen; ++i) ids.push_back(order[static_cast<std::size_t>(i)].second);
      std::sort(ids.begin(), ids.end());
      std::vector<float> s, weights;
      for (const std::int32_t id : ids) s.push_back(score[static_cast<std::size_t>(id)]);
      const float sum = family == ModelFamily::kV41 ? SumAscending(s) + 1e-20f : SumAscending(s);
      for (const float value : s) weights.push_back((value / sum) * 1.5f);
      EXPECT_EQ(got.experts, ids);
      EXPECT_TRUE(SameBits(got.weights, weights));
    }
  }
}

// --- contract against truth ----------------------------------------------------------------------------------

// RMSNorm: the sum of squares has relative error gamma(depth), of which the root halves; then the division by
// n, eps, square root, division, two products, and bf16.
double RmsNormBound(std::int64_t n) {
  return Gamma(DepthF(n)) / 2 + Gamma(6) + kUnitBf16 * (1 + Gamma(DepthF(n) + 6));
}

int NormViolations(const std::vector<float>& got, const std::vector<double>& truth) {
  const double bound = RmsNormBound(static_cast<std::int64_t>(got.size()));
  int violations = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    violations += std::fabs(got[i] - truth[i]) > bound * std::fabs(truth[i]);
  return violations;
}

TEST(RmsNormTest, TruthWithinBoundAndALostElementIsNot) {
  Random random(21);
  for (const std::int64_t n : {32, 127, 512, 5120}) {
    std::vector<float> x = Draw(n, random);
    const std::vector<float> weight = Draw(n, random);
    x[0] = static_cast<float>(n);  // so that losing it moves the mean at any n
    const std::vector<double> exact_x(x.begin(), x.end());
    std::vector<double> truth(x.size());
    std::vector<float> got(x.size());
    RmsNorm<Truth>(exact_x.data(), weight, 1e-6, truth.data());
    RmsNorm<Contract>(x.data(), weight, 1e-6, got.data());
    EXPECT_EQ(NormViolations(got, truth), 0) << n;
    x[0] = 0;
    RmsNorm<Contract>(x.data(), weight, 1e-6, got.data());
    EXPECT_GT(NormViolations(got, truth), n / 2) << n;
  }
}

ModelConfig StreamConfig(int streams, int width) {
  ModelConfig config;
  config.hc_mult = streams;
  config.hidden_size = width;
  return config;
}

TEST(HyperConnectionTest, LatticeCollapseAndExpandAreExact) {
  Random random(22);
  const int streams = 4, width = 37;
  const ModelConfig config = StreamConfig(streams, width);
  const auto integers = [&](std::size_t n) {
    std::vector<float> v;
    for (std::size_t i = 0; i < n; ++i) v.push_back(static_cast<float>(random.Integer(-3, 3)));
    return v;
  };
  const std::vector<float> stream = integers(streams * width), f = integers(width), pre = integers(streams);
  const HcCoefficients<float> c = {pre, integers(streams), integers(streams * streams)};
  std::vector<float> got(width);
  HcCollapse<Contract>(config, stream.data(), pre, got.data());
  std::vector<float> expanded = stream;
  HcExpand<Contract>(config, f.data(), c, expanded.data());
  for (int d = 0; d < width; ++d) {
    float sum = 0;
    for (int s = 0; s < streams; ++s)
      sum += pre[static_cast<std::size_t>(s)] * stream[static_cast<std::size_t>(s * width + d)];
    EXPECT_EQ(got[static_cast<std::size_t>(d)], sum);
    for (int k = 0; k < streams; ++k) {
      float out = c.post[static_cast<std::size_t>(k)] * f[static_cast<std::size_t>(d)];
      for (int j = 0; j < streams; ++j) {
        out +=
            c.mix[static_cast<std::size_t>(j * streams + k)] * stream[static_cast<std::size_t>(j * width + d)];
      }
      EXPECT_EQ(expanded[static_cast<std::size_t>(k * width + d)], out);
    }
  }
}

TEST(HyperConnectionTest, ExpandWithinBoundAndTheTransposedMixIsNot) {
  Random random(23);
  const int streams = 4, width = 64;
  const ModelConfig config = StreamConfig(streams, width);
  const std::vector<float> stream = Draw(streams * width, random), f = Draw(width, random);
  HcCoefficients<float> c = {{}, Draw(streams, random), Draw(streams * streams, random)};
  const auto violations = [&] {
    std::vector<float> got = stream;
    HcExpand<Contract>(config, f.data(), c, got.data());
    return got;
  };
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  const auto count = [&](const std::vector<float>& got, const std::vector<float>& mix) {
    int wrong = 0;
    for (int k = 0; k < streams; ++k) {
      for (int d = 0; d < width; ++d) {
        double exact = static_cast<double>(c.post[at(k)]) * f[at(d)], size = std::fabs(exact);
        for (int j = 0; j < streams; ++j) {
          const double term = static_cast<double>(mix[at(j * streams + k)]) * stream[at(j * width + d)];
          exact += term;
          size += std::fabs(term);
        }
        const double bound =
            Gamma(streams + 1) * size + kUnitBf16 * (std::fabs(exact) + Gamma(streams + 1) * size);
        wrong += std::fabs(got[at(k * width + d)] - exact) > bound;
      }
    }
    return wrong;
  };
  EXPECT_EQ(count(violations(), c.mix), 0);
  std::vector<float> transposed(c.mix.size());
  for (int j = 0; j < streams; ++j) {
    for (int k = 0; k < streams; ++k) transposed[at(k * streams + j)] = c.mix[at(j * streams + k)];
  }
  EXPECT_GT(count(violations(), transposed), streams * width / 2);
}

// --- RoPE ----------------------------------------------------------------------------------------------------

TEST(RopeTest, RotatesInterleavedPairsOfTheLastChannelsOnly) {
  const RopeTable table(10000, YarnConfig{}, 8);
  std::vector<double> x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  ApplyRope<Truth>(table, 5, RopeDirection::kForward, x.data(), 12);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(x[static_cast<std::size_t>(i)], i + 1);
  for (int j = 0; j < 4; ++j) {
    const double angle = 5 * std::pow(10000.0, -2.0 * j / 8), a = 5 + 2 * j, b = 6 + 2 * j;
    // The table is fp32: angle, cosine and sine are each rounded.
    EXPECT_NEAR(x[static_cast<std::size_t>(4 + 2 * j)], a * std::cos(angle) - b * std::sin(angle), 2e-5);
    EXPECT_NEAR(x[static_cast<std::size_t>(5 + 2 * j)], a * std::sin(angle) + b * std::cos(angle), 2e-5);
  }
}

TEST(RopeTest, InverseUndoesForwardUpToBf16) {
  Random random(24);
  const RopeTable table(160000, PublishedYarn(), 64);
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{4095}, std::int64_t{1048575}}) {
    const std::vector<float> original = Draw(64, random);
    std::vector<float> x = original;
    ApplyRope<Contract>(table, position, RopeDirection::kForward, x.data(), 64);
    ApplyRope<Contract>(table, position, RopeDirection::kInverse, x.data(), 64);
    for (std::size_t i = 0; i < 64; i += 2) {
      // Each of the two rotations rounds both channels to bf16.
      const double size = std::hypot(original[i], original[i + 1]);
      EXPECT_NEAR(x[i], original[i], 3 * kUnitBf16 * size) << position;
      EXPECT_NEAR(x[i + 1], original[i + 1], 3 * kUnitBf16 * size) << position;
    }
  }
}

TEST(RopeTest, AngleIsOneFp32Product) {
  const RopeTable table(160000, PublishedYarn(), 64);
  std::vector<float> cosine, sine;
  const std::int64_t position = 1048575;
  table.CosSin(position, &cosine, &sine);
  for (std::size_t j = 0; j < 32; ++j) {
    const float angle = static_cast<float>(position) * table.frequencies()[j];
    EXPECT_EQ(cosine[j], static_cast<float>(std::cos(static_cast<double>(angle))));
    EXPECT_EQ(sine[j], static_cast<float>(std::sin(static_cast<double>(angle))));
  }
}

// --- selection -----------------------------------------------------------------------------------------------

TEST(SelectTopTest, LargerFirstEqualValuesBySmallerIndex) {
  const std::vector<float> values = {0.0f, 2.0f, -0.0f, 2.0f, 1.0f, 0.0f};
  EXPECT_EQ(SelectTop(values, 2, "test").indices, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(SelectTop(values, 4, "test").indices, (std::vector<std::int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(SelectTop(values, 5, "test").indices, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));  // -0 is +0
  EXPECT_EQ(SelectTop(values, 9, "test").indices.size(), values.size());
}

TEST(SelectTopTest, WhatCannotBeChosenIsNot) {
  const std::vector<float> values = {-INFINITY, -1.0f, -INFINITY};
  const Selection chosen = SelectTop(values, 2, "test");
  EXPECT_EQ(chosen.indices, (std::vector<std::int64_t>{1}));
  EXPECT_EQ(chosen.margin, INFINITY);
  EXPECT_TRUE(SelectTop(std::vector<float>{}, 3, "test").indices.empty());
}

TEST(SelectTopTest, MarginIsTheGapAtTheCut) {
  EXPECT_EQ(SelectTop(std::vector<float>{5.0f, 1.0f, 3.5f}, 1, "test").margin, 1.5);
  EXPECT_EQ(SelectTop(std::vector<float>{5.0f, 5.0f}, 1, "test").margin, 0.0);
}

TEST(SelectTopTest, NanIsAnErrorThatNamesTheOperation) {
  try {
    SelectTop(std::vector<float>{1.0f, NAN}, 1, "router of layer 7");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("router of layer 7"), std::string::npos);
  }
}

TEST(SelectTopTest, AgreesWithAStableSortOnDrawsFullOfTies) {
  Random random(25);
  for (int repeat = 0; repeat < 500; ++repeat) {
    std::vector<float> values;
    for (std::int64_t n = random.Integer(0, 40); n > 0; --n)
      values.push_back(static_cast<float>(random.Integer(-2, 2)));
    const std::int64_t k = random.Integer(0, 40);
    std::vector<std::int64_t> order(values.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    order.resize(std::min(order.size(), static_cast<std::size_t>(k)));
    std::sort(order.begin(), order.end());
    ASSERT_EQ(SelectTop(values, k, "test").indices, order);
  }
}

}  // namespace
}  // namespace lockstep::reference
