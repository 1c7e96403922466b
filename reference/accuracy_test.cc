// Figures of docs/accuracy.md and ADR 0003, printed as tables, with loose limits so that a blunder fails:
//     reference_test --gtest_filter='*Accuracy*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "model/float_formats.h"
#include "model/greedy.h"
#include "reference/engine.h"
#include "reference/linear.h"
#include "reference/testing/oracle_files.h"
#include "reference/testing/test_inputs.h"
#include "reference/testing/test_linear.h"

namespace lockstep::reference {
namespace {

// --- activation quantization of one mul1 linear
// -----------------------------------------------------------------

enum class Inputs { kGaussian, kHeavyTailed, kOutlierChannels, kAlignedWithSigns };

std::string NameOf(Inputs inputs) {
  switch (inputs) {
    case Inputs::kGaussian:
      return "Gaussian";
    case Inputs::kHeavyTailed:
      return "heavy tails (t, 3 degrees)";
    case Inputs::kOutlierChannels:
      return "1 channel in 128, 30 times";
    case Inputs::kAlignedWithSigns:
      return "5 times the signs of suh added";
  }
  return "";
}

// The last kind is the worst for one scale a block: the transform gathers what follows suh's signs in one
// element.
Matrix<float> DrawInputs(Inputs kind, std::int64_t rows, const LinearWeight& linear, Random& random) {
  Matrix<float> x(rows, linear.in_features);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t k = 0; k < linear.in_features; ++k) {
      double value = kind == Inputs::kHeavyTailed ? random.HeavyTailed() : random.Normal();
      if (kind == Inputs::kOutlierChannels && k % 128 == 77) value *= 30;
      if (kind == Inputs::kAlignedWithSigns) value += std::copysign(5.0, linear.exl3.InputScale(k));
      x(t, k) = RoundToBF16(static_cast<float>(value));
    }
  }
  return x;
}

TestLinear DrawMul1(int bits, std::int64_t in, std::int64_t out, Random& random) {
  TestLinear::Exl3 parts{.codebook = Codebook::kMul1, .bits_x2 = 2 * bits, .out = out, .in = in};
  for (std::int64_t i = in / 16 * out / 16 * 8 * bits; i > 0; --i)
    parts.words.push_back(static_cast<std::uint32_t>(random.Bits()));
  const auto sign = [&] { return random.Integer(0, 1) ? 1.0 : -1.0; };
  // Row scales of real packs vary by tens of percent; column scales have mean 1.
  for (std::int64_t i = 0; i < in; ++i)
    parts.suh.push_back(RoundToF16(static_cast<float>(sign() * std::exp(0.3 * random.Normal()))));
  for (std::int64_t j = 0; j < out; ++j)
    parts.svh.push_back(RoundToF16(static_cast<float>(sign() * std::exp(0.1 * random.Normal()))));
  return TestLinear::FromExl3(parts);
}

Options ActQuantOptions(ActQuant act_quant, bool truth, bool fake_quant = true) {
  Options options;
  options.truth = truth;
  options.numerics.act_quant = act_quant;
  options.numerics.fake_quant = fake_quant;
  return options;
}

template <typename A>
Matrix<double> Outputs(const TestLinear& linear, const Matrix<float>& x, ActQuant act_quant) {
  LinearEngine<A> engine(ActQuantOptions(act_quant, A::kTruth), 128);
  return engine.Apply(linear.weight(), x.cast<typename A::Real>(), LinearOutput::kFp32).template cast<double>();
}

double NormalizedError(const Matrix<double>& got, const Matrix<double>& exact) {
  return (got - exact).squaredNorm() / exact.squaredNorm();
}

// NMSE of rounding a Gaussian matrix to K bits of the mul1 codebook, as published with the format.
constexpr double kWeightError[9] = {0,        0.2715,   0.0679,   0.01732, 0.00443,
                                    0.001137, 0.000295, 0.000082, 0.000026};

TEST(ActQuantAccuracyTest, NormalizedErrorOfLinearOutputs) {
  Random random(81);
  std::printf(
      "| K | weights | inputs | int8 | int16 | int8 / weights | int16 / weights | contract int8 | contract "
      "int16 | contract none |\n");
  std::printf("| - | - | - | - | - | - | - | - | - | - |\n");
  for (int bits = 2; bits <= 8; ++bits) {
    const TestLinear linear = DrawMul1(bits, 1024, 256, random);
    for (const Inputs inputs :
         {Inputs::kGaussian, Inputs::kHeavyTailed, Inputs::kOutlierChannels, Inputs::kAlignedWithSigns}) {
      const Matrix<float> x = DrawInputs(inputs, 24, linear.weight(), random);
      const Matrix<double> exact = Outputs<Truth>(linear, x, ActQuant::kNone);
      const double int8 = NormalizedError(Outputs<Truth>(linear, x, ActQuant::kInt8), exact);
      const double int16 = NormalizedError(Outputs<Truth>(linear, x, ActQuant::kInt16), exact);
      const double contract8 = NormalizedError(Outputs<Contract>(linear, x, ActQuant::kInt8), exact);
      const double contract16 = NormalizedError(Outputs<Contract>(linear, x, ActQuant::kInt16), exact);
      const double contract_none = NormalizedError(Outputs<Contract>(linear, x, ActQuant::kNone), exact);
      std::printf("| %d | %.1e | %s | %.1e | %.1e | %.1f %% | %.4f %% | %.1e | %.1e | %.1e |\n", bits,
                  kWeightError[bits], NameOf(inputs).c_str(), int8, int16, 100 * int8 / kWeightError[bits],
                  100 * int16 / kWeightError[bits], contract8, contract16, contract_none);
      EXPECT_LT(int8, inputs == Inputs::kAlignedWithSigns ? 2e-3 : 2e-4);
      EXPECT_LT(int16, inputs == Inputs::kAlignedWithSigns ? 2e-8 : 2e-9);
      EXPECT_LT(contract16, 1e-6);  // the fp16 rounding of the weights that the affine form leaves out
      if (inputs == Inputs::kAlignedWithSigns) continue;
      // What auto chooses stays well below the error of the weights themselves.
      EXPECT_LT(bits <= 4 ? contract8 : contract16, 0.06 * kWeightError[bits]);
    }
  }
}

// --- comparison of two runs
// -----------------------------------------------------------------------------------------

struct ModelRun {
  std::vector<float> logits;
  std::size_t vocab = 0;
  // By layer and position: experts and selected entries, as reported; margins by kind of decision.
  std::map<std::tuple<std::string, int, std::int64_t>, std::vector<float>> decisions;
  std::map<std::string, std::vector<double>> margins;
};

class DecisionTrace : public StepTrace {
 public:
  explicit DecisionTrace(ModelRun* run) : run_(run) {}

  void OnStep(std::string_view step, int layer, std::int64_t position, std::span<const float> values) override {
    if (step == step::kSelected)
      run_->decisions[{"index", layer, position}].assign(values.begin(), values.end());
    if (step == step::kRouter) {
      run_->decisions[{"router", layer, position}].assign(
          values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
    }
  }
  void OnDecision(std::string_view kind, int, std::int64_t, double margin) override {
    if (std::isfinite(margin)) run_->margins[std::string(kind)].push_back(margin);
  }

 private:
  ModelRun* run_;
};

ModelRun RunModel(const std::shared_ptr<const Checkpoint>& checkpoint, const std::vector<std::int32_t>& ids,
                  Options options) {
  ModelRun run;
  DecisionTrace trace(&run);
  options.trace = &trace;
  run.logits =
      MakeEngine(checkpoint, options)->NewSession()->Append(ids, static_cast<std::int64_t>(ids.size()));
  run.vocab = static_cast<std::size_t>(checkpoint->config.vocab_size);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    run.margins["top 2"].push_back(
        ChooseGreedy(std::span(run.logits).subspan(t * run.vocab, run.vocab)).margin);
  }
  return run;
}

std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(value - top);
  std::vector<double> out;
  for (const float value : logits) out.push_back(value - top - std::log(sum));
  return out;
}

struct Difference {
  double median_kl = 0, mean_kl = 0, same_argmax = 0, median_logit = 0, largest_logit = 0;
};

double MedianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// KL(expected || got) and logits by position.
Difference Compare(const ModelRun& got, const ModelRun& expected) {
  std::vector<double> kl, largest;
  Difference out;
  for (std::size_t begin = 0; begin < expected.logits.size(); begin += expected.vocab) {
    const std::span<const float> a = std::span(got.logits).subspan(begin, got.vocab);
    const std::span<const float> b = std::span(expected.logits).subspan(begin, got.vocab);
    const std::vector<double> p = LogSoftmax(b), q = LogSoftmax(a);
    double sum = 0, worst = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      sum += std::exp(p[i]) * (p[i] - q[i]);
      worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
    }
    kl.push_back(sum);
    largest.push_back(worst);
    out.same_argmax += ChooseGreedy(a).id == ChooseGreedy(b).id;
  }
  out.same_argmax /= static_cast<double>(kl.size());
  for (const double value : kl) out.mean_kl += value / static_cast<double>(kl.size());
  out.median_kl = MedianOf(kl);
  out.median_logit = MedianOf(largest);
  out.largest_logit = *std::max_element(largest.begin(), largest.end());
  return out;
}

// Part of the choices of a kind (experts, or entries of the index) that the other run did not make at the same
// place.
double Flipped(const ModelRun& got, const ModelRun& expected, const std::string& kind) {
  std::size_t all = 0, kept = 0;
  for (const auto& [key, chosen] : expected.decisions) {
    if (std::get<0>(key) != kind) continue;
    const std::vector<float>& other = got.decisions.at(key);  // both ascend
    std::vector<float> common;
    std::set_intersection(chosen.begin(), chosen.end(), other.begin(), other.end(), std::back_inserter(common));
    all += chosen.size();
    kept += common.size();
  }
  return all ? static_cast<double>(all - kept) / static_cast<double>(all) : 0.0;
}

std::vector<std::int32_t> DrawIds(const ModelConfig& config, std::int64_t tokens) {
  Random random(82);
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t)
    ids.push_back(static_cast<std::int32_t>(random.Integer(3, config.vocab_size - 1)));
  return ids;
}

class ActQuantLogitsAccuracyTest : public testing::TestWithParam<const char*> {};

TEST_P(ActQuantLogitsAccuracyTest, LogitsOfTinyMul1Models) {
  const std::shared_ptr<const Checkpoint> checkpoint =
      OpenShared(OraclePath(std::string("../models/") + GetParam()));
  const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, 200);
  const auto run = [&](ActQuant act_quant, bool fake_quant) {
    return RunModel(checkpoint, ids, ActQuantOptions(act_quant, true, fake_quant));
  };
  const auto print = [&](const char* quantizers, const std::string& what, const Difference& d) {
    std::printf("| %s | %s | %s | %.1e | %.1e | %.1f %% | %.2g |\n", GetParam(), quantizers, what.c_str(),
                d.mean_kl, d.median_kl, 100 * d.same_argmax, d.median_logit);
  };
  for (const bool fake_quant : {false, true}) {
    const ModelRun exact = run(ActQuant::kNone, fake_quant);
    std::map<ActQuant, double> kl;
    for (const ActQuant act_quant : {ActQuant::kInt8, ActQuant::kInt16, ActQuant::kAuto}) {
      const Difference d = Compare(run(act_quant, fake_quant), exact);
      kl[act_quant] = d.median_kl;
      print(fake_quant ? "official" : "none", std::string(lockstep::NameOf(act_quant)), d);
    }
    EXPECT_LT(kl[ActQuant::kInt16], kl[ActQuant::kInt8]);
  }
  print("official", "none, against no quantizer",
        Compare(run(ActQuant::kNone, true), run(ActQuant::kNone, false)));
}

INSTANTIATE_TEST_SUITE_P(Models, ActQuantLogitsAccuracyTest, testing::Values("tiny-v4-mul1", "tiny-v41-mul1"),
                         [](const auto& param) {
                           return param.index == 0 ? std::string("V4") : std::string("V41");
                         });

// --- contract against truth
// ------------------------------------------------------------------------------------------

struct AccuracyCase {
  std::string name, dir;
  std::size_t tokens;
};

class ContractAccuracyTest : public testing::TestWithParam<AccuracyCase> {};

TEST_P(ContractAccuracyTest, LogitsAndDecisions) {
  const std::string dir = OraclePath(GetParam().dir);
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(dir);
  const std::vector<std::int32_t> ids =
      DrawIds(checkpoint->config, static_cast<std::int64_t>(GetParam().tokens));
  for (const bool fake_quant : {true, false}) {
    Options options;
    options.truth = true;
    options.numerics.fake_quant = fake_quant;
    const ModelRun truth = RunModel(checkpoint, ids, options);
    options.truth = false;
    const char* quantizers = fake_quant ? "official" : "none";
    for (const Profile profile : {Profile::kSm90, Profile::kFma}) {
      options.numerics.profile = profile;
      const ModelRun contract = RunModel(checkpoint, ids, options);
      const Difference d = Compare(contract, truth);
      std::printf("| %s | %s | %s | %.2g | %.2g | %.1e | %.1f %% | %.2f %% | %.2f %% |\n",
                  GetParam().name.c_str(), quantizers, std::string(lockstep::NameOf(profile)).c_str(),
                  d.median_logit, d.largest_logit, d.median_kl, 100 * d.same_argmax,
                  100 * Flipped(contract, truth, "router"), 100 * Flipped(contract, truth, "index"));
      EXPECT_LT(Flipped(contract, truth, "router"), 0.5);
    }
    for (const auto& [kind, margins] : truth.margins) {
      const auto thin =
          std::count_if(margins.begin(), margins.end(), [](double margin) { return margin < 1e-3; });
      std::printf("margin: %s | %s | %s | %zu | %.1e | %.2g | %.2f %%\n", GetParam().name.c_str(), quantizers,
                  kind.c_str(), margins.size(), *std::min_element(margins.begin(), margins.end()),
                  MedianOf(margins), 100.0 * static_cast<double>(thin) / static_cast<double>(margins.size()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ContractAccuracyTest,
                         testing::Values(AccuracyCase{"HfV41", "hf-v4-1", 160},
                                         AccuracyCase{"HfV4b", "hf-v4-b", 160},
                                         AccuracyCase{"NumpyV41n2", "numpy-v41-2", 160},
                                         AccuracyCase{"NumpyV41n3", "numpy-v41-3", 160},
                                         AccuracyCase{"TinyV4Native", "../models/tiny-v4-native", 120},
                                         AccuracyCase{"TinyV41Mul1", "../models/tiny-v41-mul1", 120}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace lockstep::reference
