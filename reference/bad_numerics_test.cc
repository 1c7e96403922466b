// Numbers that must not go on: each ends in one line that names where it is, and nothing aborts.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/test_util.h"
#include "reference/engine.h"
#include "reference/linear.h"
#include "reference/testing/checkpoint_copy.h"
#include "reference/testing/oracle_files.h"
#include "reference/testing/same_bits.h"
#include "reference/testing/test_inputs.h"
#include "reference/testing/test_linear.h"

namespace lockstep::reference {
namespace {

std::vector<std::int32_t> AllKindsOfIds(int vocab) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(i * 7 % vocab);
  return ids;
}

struct Outcome {
  std::string error;
  std::vector<float> logits;
};

Outcome RunModel(const std::string& dir, bool truth, Profile profile = Profile::kFma) {
  Outcome outcome;
  try {
    Options options;
    options.truth = truth;
    options.numerics.profile = profile;
    const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(dir);
    const std::vector<std::int32_t> ids = AllKindsOfIds(checkpoint->config.vocab_size);
    outcome.logits =
        MakeEngine(checkpoint, options)->NewSession()->Append(ids, static_cast<std::int64_t>(ids.size()));
  } catch (const InputError& error) {
    outcome.error = error.what();
  }
  return outcome;
}

Outcome RunWith(const std::string& from, const std::map<std::string, TensorEdit>& edits, bool truth = false,
                Profile profile = Profile::kFma) {
  const TestDirectory directory;
  CopyCheckpoint(from, directory.File("model"), edits);
  return RunModel(directory.File("model"), truth, profile);
}

bool IsFloatingPoint(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF8E4M3;
}

// Experts past the second are read as the first two are.
bool IsRepetition(const std::string& name) {
  const std::size_t at = name.find("experts.");
  return at != std::string::npos && std::isdigit(name[at + 8]) && name[at + 8] > '1';
}

// --- weights that are not numbers ----------------------------------------------------------------------------

struct PoisonCase {
  std::string name, dir;
  float value;
  bool truth;
};

class PoisonedTensorTest : public testing::TestWithParam<PoisonCase> {};

// Fills one tensor after the other. Either the error names it, or nothing that the sequence reads was in it.
TEST_P(PoisonedTensorTest, IsNamedOrUnused) {
  const std::string dir = OraclePath(GetParam().dir);
  const Outcome clean = RunModel(dir, GetParam().truth);
  ASSERT_EQ(clean.error, "");
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(dir);
  int named = 0;
  for (const auto& [name, view] : checkpoint->files.tensors()) {
    if (!IsFloatingPoint(view.dtype) || IsRepetition(name)) continue;
    const Outcome outcome = RunWith(dir, {{name, FillWith(GetParam().value)}}, GetParam().truth);
    if (outcome.error.empty()) {
      EXPECT_TRUE(SameBits(outcome.logits, clean.logits)) << name;
      continue;
    }
    EXPECT_NE(outcome.error.find(name), std::string::npos) << name << ": " << outcome.error;
    EXPECT_NE(outcome.error.find("model.safetensors"), std::string::npos) << name << ": " << outcome.error;
    EXPECT_EQ(outcome.error.find('\n'), std::string::npos);
    ++named;
  }
  EXPECT_GT(named, 50);
}

INSTANTIATE_TEST_SUITE_P(Cases, PoisonedTensorTest,
                         testing::Values(PoisonCase{"HfV4bNan", "hf-v4-b", NAN, false},
                                         PoisonCase{"HfV4bInfinity", "hf-v4-b", INFINITY, false},
                                         PoisonCase{"NumpyV41n2Nan", "numpy-v41-2", NAN, false},
                                         PoisonCase{"NumpyV41n2Infinity", "numpy-v41-2", -INFINITY, false},
                                         PoisonCase{"HfV4aNanInTruth", "hf-v4-a", NAN, true},
                                         PoisonCase{"NumpyV41n1NanInTruth", "numpy-v41-1", NAN, true}),
                         [](const auto& param) { return param.param.name; });

TEST(PoisonedExl3Test, EveryScaleIsNamed) {
  const std::string dir = OraclePath("../models/tiny-v4-mul1");
  int tensors = 0;
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(dir);
  for (const auto& [name, view] : checkpoint->files.tensors()) {
    if (view.dtype != DType::kF16 || ++tensors % 16 != 0) continue;
    const Outcome outcome = RunWith(dir, {{name, FillWith(NAN)}});
    EXPECT_NE(outcome.error.find(name), std::string::npos) << name << ": " << outcome.error;
  }
  EXPECT_GT(tensors, 100);
}

// --- activations that overflow -------------------------------------------------------------------------------

// Finite weights at the end of the range: somewhere a product overflows. Any outcome but a one-line error or
// finite logits is wrong.
TEST(OverflowTest, HugeWeightsEndInAnErrorThatNamesALayerOrInFiniteLogits) {
  for (const auto& [oracle, profile] :
       {std::pair("hf-v4-a", Profile::kSm90), std::pair("numpy-v41-1", Profile::kFma)}) {
    const std::string dir = OraclePath(oracle);
    int errors = 0;
    const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(dir);
    for (const auto& [name, view] : checkpoint->files.tensors()) {
      if (IsRepetition(name) || !IsFloatingPoint(view.dtype) || view.dtype == DType::kF8E4M3) continue;
      const Outcome outcome = RunWith(dir, {{name, FillWith(3e38f)}}, false, profile);
      errors += !outcome.error.empty();
      EXPECT_EQ(outcome.error.find('\n'), std::string::npos);
      for (const float value : outcome.logits) ASSERT_TRUE(std::isfinite(value)) << name;
    }
    EXPECT_GT(errors, 5) << dir;
  }
}

TEST(OverflowTest, ActivationsBeyondFp16OfAnMcgLinearNameTheLayer) {
  const std::string dir = OraclePath("../models/tiny-v4-mixed");
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(dir);
  const LayerWeights& layer = checkpoint->weights.layers[0];
  int seen = 0;
  for (const LinearWeight* linear :
       {&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_b, &layer.shared_expert.w1, &layer.shared_expert.w2}) {
    if (linear->kind != LinearWeight::Kind::kExl3 || linear->exl3.codebook == Codebook::kMul1) continue;
    const Outcome outcome = RunWith(dir, {{linear->name + ".suh", FillWith(65504.0f)}});
    EXPECT_NE(outcome.error.find(linear->name), std::string::npos) << linear->name << ": " << outcome.error;
    EXPECT_NE(outcome.error.find("fp16"), std::string::npos) << outcome.error;
    ++seen;
  }
  EXPECT_GT(seen, 0);
}

TestLinear OneTile(Codebook codebook) {
  TestLinear::Exl3 parts{.codebook = codebook, .bits_x2 = 6, .out = 128, .in = 128};
  parts.words.assign(8 * 8 * 24, 0x12345678u);
  parts.suh.assign(128, 1.0f);
  parts.svh.assign(128, 1.0f);
  return TestLinear::FromExl3(parts);
}

TEST(OverflowTest, EveryLinearThatNeedsFp16InputsSaysSo) {
  const TestLinear f16 = TestLinear::Dense(DType::kF16, 1, 128, std::vector<float>(128, 1.0f));
  const TestLinear mcg = OneTile(Codebook::kMcg), three = OneTile(Codebook::k3inst),
                   mul1 = OneTile(Codebook::kMul1);
  Matrix<float> x = Matrix<float>::Zero(1, 128);
  x(0, 3) = 1e5f;
  for (const TestLinear* linear : {&f16, &mcg, &three}) {
    ExpectInputError([&] { LinearEngine<Contract>(Options{}, 128).Apply(linear->weight(), x); },
                     {"linear", "fp16"});
  }
  Options unquantized;
  unquantized.numerics.act_quant = ActQuant::kNone;
  ExpectInputError([&] { LinearEngine<Contract>(unquantized, 128).Apply(mul1.weight(), x); },
                   {"linear", "fp16"});
  EXPECT_NO_THROW(
      LinearEngine<Contract>(Options{}, 128).Apply(mul1.weight(), x));  // int8 codes have no such limit
}

// The transform can leave the fp16 range although every input is inside it.
TEST(OverflowTest, ATransformBeyondFp16IsSeen) {
  const TestLinear mcg = OneTile(Codebook::kMcg);
  const Matrix<float> x =
      Matrix<float>::Constant(1, 128, 60000.0f);  // all in one output of the transform: 60000 sqrt(128)
  ExpectInputError([&] { LinearEngine<Contract>(Options{}, 128).Apply(mcg.weight(), x); }, {"linear", "fp16"});
}

TEST(OverflowTest, InputsThatAreNotFiniteNameTheLinear) {
  Random random(71);
  const TestLinear bf16 = TestLinear::Dense(DType::kBF16, 1, 128, std::vector<float>(128, 1.0f));
  const TestLinear f32 = TestLinear::Dense(DType::kF32, 1, 128, std::vector<float>(128, 1.0f));
  const std::vector<std::uint8_t> codes(128, 0x38), scales(4, 127);
  const TestLinear fp8 = TestLinear::Fp8(32, 1, 128, codes, scales);
  const TestLinear mul1 = OneTile(Codebook::kMul1), mcg = OneTile(Codebook::kMcg);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    Matrix<float> x = Matrix<float>::Ones(2, 128);
    x(1, 77) = bad;
    for (const TestLinear* linear : {&bf16, &f32, &fp8, &mul1, &mcg}) {
      ExpectInputError([&] { LinearEngine<Contract>(Options{}, 32).Apply(linear->weight(), x); }, {"linear"});
    }
  }
}

TEST(OverflowTest, OutputsThatAreNotFiniteNameTheLinear) {
  const TestLinear bf16 = TestLinear::Dense(DType::kBF16, 1, 128, std::vector<float>(128, 3e38f));
  const Matrix<float> x = Matrix<float>::Constant(1, 128, 2.0f);
  for (const Profile profile : {Profile::kSm90, Profile::kSm70Jit, Profile::kFma}) {
    Options options;
    options.numerics.profile = profile;
    ExpectInputError([&] { LinearEngine<Contract>(options, 128).Apply(bf16.weight(), x); }, {"linear"});
  }
}

// --- ids and lengths -----------------------------------------------------------------------------------------

TEST(BadSequenceTest, IdsOutsideTheVocabularyLeaveTheSessionAsItWas) {
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(OraclePath("numpy-v41-2"));
  for (const bool truth : {true, false}) {
    Options options;
    options.truth = truth;
    options.numerics.profile = Profile::kFma;
    const std::unique_ptr<Engine> engine = MakeEngine(checkpoint, options);
    const std::unique_ptr<Session> session = engine->NewSession(), untouched = engine->NewSession();
    session->Append(std::vector<std::int32_t>{5, 6, 7}, 0);
    untouched->Append(std::vector<std::int32_t>{5, 6, 7}, 0);
    for (const std::int32_t bad : {-1, 256, 1 << 30}) {
      const std::vector<std::int32_t> ids = {1, bad};
      ExpectInputError([&] { session->Append(ids, 1); }, {std::to_string(bad), "256"});
      EXPECT_EQ(session->position(), 3);
    }
    const std::vector<std::int32_t> good = {8, 9};
    EXPECT_TRUE(SameBits(session->Append(good, 2), untouched->Append(good, 2)));
  }
}

TEST(BadSequenceTest, NothingGoesBeyondMaxPositionEmbeddings) {
  const TestDirectory directory;
  const std::string dir = directory.File("short");
  CopyCheckpoint(OraclePath("hf-v4-a"), dir, {},
                 [](nlohmann::json& config) { config["max_position_embeddings"] = 20; });
  Options options;
  options.numerics.profile = Profile::kFma;
  const std::unique_ptr<Engine> engine = MakeEngine(OpenShared(dir), options);
  const std::unique_ptr<Session> session = engine->NewSession();
  const std::vector<std::int32_t> ids(21, 3);
  ExpectInputError([&] { session->Append(ids, 0); }, {"21", "max_position_embeddings", "20"});
  EXPECT_EQ(session->position(), 0);
  EXPECT_EQ(session->Append(std::span(ids).first(20), 0).size(), 0u);
  ExpectInputError([&] { session->Append(std::span(ids).first(1), 0); },
                   {"21", "max_position_embeddings", "20"});
  EXPECT_EQ(session->position(), 20);
}

TEST(BadSequenceTest, NoTokensAreNoWorkAndASessionOutlivesItsEngine) {
  std::unique_ptr<Engine> engine = MakeEngine(OpenShared(OraclePath("hf-v4-a")), Options{});
  const std::unique_ptr<Session> session = engine->NewSession();
  engine.reset();
  EXPECT_EQ(session->Append({}, 0).size(), 0u);
  EXPECT_EQ(session->position(), 0);
}

}  // namespace
}  // namespace lockstep::reference
