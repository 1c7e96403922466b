// Single operations in truth against golden/oracles/micro, computed in numpy from the published formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reference/moe.h"
#include "reference/ops.h"
#include "reference/quantize.h"
#include "reference/testing/oracle_files.h"
#include "reference/testing/test_linear.h"

namespace lockstep::reference {
namespace {

using nlohmann::json;

json Cases(const std::string& operation) {
  const json file = json::parse(ReadFileBytes(OraclePath("micro/" + operation + ".json")));
  EXPECT_EQ(file.at("operation"), operation);
  EXPECT_FALSE(file.at("cases").empty());
  return file.at("cases");
}

// All numbers of a nested list, in order.
template <typename T = double>
std::vector<T> Flat(const json& value) {
  if (value.is_number()) return {value.get<T>()};
  std::vector<T> out;
  for (const json& element : value) {
    const std::vector<T> part = Flat<T>(element);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

// Differences come from parameters that the engine keeps in fp32 and the oracle in double, or from sums in
// another order.
void ExpectNear(const std::vector<double>& got, const json& expected, double tolerance,
                const std::string& what) {
  const std::vector<double> want = Flat(expected);
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << what << " " << i;
}

constexpr double kDouble = 1e-13;
constexpr double kFp32Parameters = 2e-6;

TEST(MicroOracleTest, ActQuant8) {
  for (const json& c : Cases("act_quant8")) {
    const std::int64_t block = c["block"];
    const std::vector<float> expected_scale = Flat<float>(c["scale"]), expected = Flat<float>(c["y"]);
    std::vector<float> x = Flat<float>(c["x"]), codes(x.size());
    for (std::size_t i = 0; i * static_cast<std::size_t>(block) < x.size(); ++i) {
      const float* begin = x.data() + i * static_cast<std::size_t>(block);
      EXPECT_EQ(ActQuant8Block(begin, block, codes.data()), expected_scale[i]);
    }
    FakeQuant8(x.data(), static_cast<std::int64_t>(x.size()), block);
    EXPECT_EQ(x, expected) << "block " << block;
  }
}

TEST(MicroOracleTest, ActQuant4) {
  for (const json& c : Cases("act_quant4")) {
    const std::int64_t block = c["block"];
    const Fp4Scale kind = c["scale_kind"] == "E8M0" ? Fp4Scale::kE8M0 : Fp4Scale::kE4M3;
    const std::vector<float> expected_scale = Flat<float>(c["scale"]), expected = Flat<float>(c["y"]);
    std::vector<float> x = Flat<float>(c["x"]), codes(x.size());
    for (std::size_t i = 0; i * static_cast<std::size_t>(block) < x.size(); ++i) {
      const float* begin = x.data() + i * static_cast<std::size_t>(block);
      EXPECT_EQ(ActQuant4Block(begin, block, kind, codes.data()), expected_scale[i]);
    }
    FakeQuant4(x.data(), static_cast<std::int64_t>(x.size()), block, kind);
    EXPECT_EQ(x, expected) << "block " << block;
  }
}

TEST(MicroOracleTest, HadamardOfIndexVectors) {
  for (const json& c : Cases("hadamard")) {
    std::vector<double> x = Flat(c["x"]);
    const auto n = static_cast<std::int64_t>(x.size());
    Butterfly(x.data(), n);
    if (c.contains("y_times_sqrt_n")) {
      EXPECT_EQ(x, Flat(c["y_times_sqrt_n"]));
    }
    for (double& value : x) value /= std::sqrt(static_cast<double>(n));
    ExpectNear(x, c["y"], kDouble, "hadamard " + std::to_string(n));
  }
}

YarnConfig YarnOf(const json& c) {
  if (c.is_null()) return {};
  return {c["factor"], c["beta_fast"], c["beta_slow"], c["original_max_position_embeddings"]};
}

TEST(MicroOracleTest, InverseFrequencies) {
  for (const json& c : Cases("inverse_frequencies")) {
    const RopeTable table(c["theta"], YarnOf(c["yarn"]), c["rope_dim"]);
    EXPECT_EQ(table.frequencies(), Flat<float>(c["inverse_frequencies"])) << c["theta"] << " " << c["yarn"];
  }
}

TEST(MicroOracleTest, Rope) {
  for (const json& c : Cases("rope")) {
    const RopeTable table(c["theta"], YarnConfig{}, c["rope_dim"]);
    const std::vector<std::int64_t> positions = c["positions"];
    std::vector<double> x = Flat(c["x"]);
    const std::size_t width = x.size() / positions.size();
    for (std::size_t t = 0; t < positions.size(); ++t) {
      const RopeDirection direction = c["inverse"] ? RopeDirection::kInverse : RopeDirection::kForward;
      ApplyRope<Truth>(table, positions[t], direction, x.data() + t * width, static_cast<std::int64_t>(width));
    }
    ExpectNear(x, c["y"], kDouble, "rope");
  }
}

TEST(MicroOracleTest, HyperConnections) {
  for (const json& c : Cases("mhc")) {
    const std::vector<double> streams = Flat(c["streams_TSE"]), f = Flat(c["sublayer_output_TE"]);
    const std::size_t tokens = c["streams_TSE"].size(), count = c["streams_TSE"][0].size(),
                      width = c["streams_TSE"][0][0].size();
    ModelConfig config;
    config.hc_mult = static_cast<int>(count);
    config.hidden_size = static_cast<int>(width);
    config.hc_sinkhorn_iters = c["rounds"];
    config.hc_eps = c["hc_eps"];
    config.rms_norm_eps = c["norm_eps"];
    const HcParameters site{Flat<float>(c["fn"]), Flat<float>(c["base"]), Flat<float>(c["scale"]),
                            static_cast<std::int64_t>(c["fn"].size())};
    std::vector<double> pre, post, mix, collapsed, expanded = streams;
    for (std::size_t t = 0; t < tokens; ++t) {
      const double* stream = streams.data() + t * count * width;
      const HcCoefficients<double> got = HcMix<Truth>(config, site, stream);
      pre.insert(pre.end(), got.pre.begin(), got.pre.end());
      post.insert(post.end(), got.post.begin(), got.post.end());
      mix.insert(mix.end(), got.mix.begin(), got.mix.end());
      std::vector<double> y(width);
      HcCollapse<Truth>(config, stream, got.pre, y.data());
      collapsed.insert(collapsed.end(), y.begin(), y.end());
      HcExpand<Truth>(config, f.data() + t * width, got, expanded.data() + t * count * width);
    }
    ExpectNear(pre, c["pre"], kFp32Parameters, "pre");
    ExpectNear(post, c["post"], kFp32Parameters, "post");
    ExpectNear(mix, c["comb"], kFp32Parameters, "mix");
    ExpectNear(collapsed, c["collapsed"], kFp32Parameters, "collapsed");
    ExpectNear(expanded, c["expanded"], kFp32Parameters, "expanded");
  }
}

// --- mixture of experts --------------------------------------------------------------------------------------

// The router with an identity matrix, so that its logits are the input.
std::vector<Routing<double>> RouteCase(const json& c, ModelFamily family) {
  const std::size_t tokens = c["logits"].size(), experts = c["logits"][0].size();
  ModelConfig config;
  config.family = family;
  config.hidden_size = config.n_routed_experts = static_cast<int>(experts);
  config.num_experts_per_tok = c["k"];
  config.routed_scaling_factor = c["scaling"];
  std::vector<float> gate(experts * experts, 0.0f), bias;
  for (std::size_t e = 0; e < experts; ++e) gate[e * experts + e] = 1.0f;
  LayerWeights layer;
  std::vector<std::int64_t> table;
  if (c.contains("hash_ids")) {
    table = Flat<std::int64_t>(c["hash_ids"]);
    layer.tid2eid.data = std::as_bytes(std::span(table));
  } else {
    bias = Flat<float>(c["bias"]);
  }
  std::vector<Routing<double>> out;
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::vector<double> logits = Flat(c["logits"][t]);
    out.push_back(Route<Truth>(config, layer, gate, bias, static_cast<std::int32_t>(t), logits.data(), 0));
  }
  return out;
}

void ExpectRouting(const json& c, const std::vector<Routing<double>>& got) {
  for (std::size_t t = 0; t < got.size(); ++t) {
    // The oracle lists by rank, the engine by expert.
    std::vector<std::pair<std::int32_t, double>> expected;
    for (std::size_t i = 0; i < c["ids"][t].size(); ++i)
      expected.emplace_back(c["ids"][t][i], c["weights"][t][i]);
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(got[t].experts.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(got[t].experts[i], expected[i].first) << "token " << t;
      EXPECT_NEAR(got[t].weights[i], expected[i].second, kDouble) << "token " << t;
    }
  }
}

TEST(MicroOracleTest, Router) {
  for (const json& c : Cases("router")) {
    ExpectRouting(c, RouteCase(c, ModelFamily::kV4));
    if (c["k"] > 1) ExpectRouting(c, RouteCase(c, ModelFamily::kV41));
  }
}

// V4.1 does not normalise the weight of a single expert: it is score times factor.
TEST(MicroOracleTest, RouterOfV41WithOneExpertKeepsTheScore) {
  int seen = 0;
  for (const json& c : Cases("router")) {
    if (c["k"] != 1) continue;
    const std::vector<Routing<double>> got = RouteCase(c, ModelFamily::kV41);
    for (std::size_t t = 0; t < got.size(); ++t, ++seen) {
      const double score = c["scores"][t][static_cast<std::size_t>(got[t].experts[0])];
      EXPECT_NEAR(got[t].weights[0], score * static_cast<double>(c["scaling"]), kDouble);
    }
  }
  EXPECT_GT(seen, 0);
}

// One expert whose matrices pick the gate half and the up half of the input and give the product back.
TEST(MicroOracleTest, ClampedSwiglu) {
  for (const json& c : Cases("clamped_swiglu")) {
    const std::vector<double> gate = Flat(c["gate"]), up = Flat(c["up"]);
    const auto n = static_cast<std::int64_t>(gate.size());
    const auto picks = [n](std::int64_t rows, std::int64_t columns, std::int64_t offset) {
      std::vector<float> values(static_cast<std::size_t>(rows * columns), 0.0f);
      for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i * columns + i + offset)] = 1.0f;
      return TestLinear::Dense(DType::kF32, rows, columns, values);
    };
    const TestLinear w1 = picks(n, 2 * n, 0), w3 = picks(n, 2 * n, n), w2 = picks(2 * n, n, 0);
    const TestLinear zero =
        TestLinear::Dense(DType::kF32, n, 2 * n, std::vector<float>(static_cast<std::size_t>(2 * n * n), 0.0f));
    LayerWeights layer;
    layer.experts = {{w1.weight(), w2.weight(), w3.weight()}};
    layer.shared_expert = {zero.weight(), w2.weight(), zero.weight()};
    int name = 0;
    for (ExpertWeights* expert : {&layer.experts[0], &layer.shared_expert}) {
      for (LinearWeight* w : {&expert->w1, &expert->w2, &expert->w3}) w->name = std::to_string(name++);
    }
    ModelConfig config;
    config.swiglu_limit = c["limit"];
    Options options;
    options.truth = true;
    LinearEngine<Truth> linears(options, 128);
    Matrix<double> x(1, 2 * n);
    for (std::int64_t i = 0; i < n; ++i) {
      x(0, i) = gate[static_cast<std::size_t>(i)];
      x(0, n + i) = up[static_cast<std::size_t>(i)];
    }
    const Matrix<double> y = ApplyExperts<Truth>(config, layer, linears, x, {Routing<double>{{0}, {1.0}, 0}});
    ExpectNear({y.data(), y.data() + n}, c["y"], kDouble, "swiglu");
  }
}

}  // namespace
}  // namespace lockstep::reference
