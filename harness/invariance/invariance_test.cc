// The quick matrix of `lockstep check` on the oracle checkpoints and the golden models: logits of the fast
// engine, memcmp against the reference in the same contract.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "fast/engine.h"
#include "harness/check/same_bits_gtest.h"
#include "harness/invariance/check_model.h"
#include "harness/invariance/configuration.h"
#include "harness/invariance/expectation.h"
#include "model/checkpoint.h"
#include "model/test_util.h"

namespace lockstep::harness {
namespace {

std::string GoldenPath(const std::string& name) { return std::string(LOCKSTEP_SOURCE_DIR) + "/golden/" + name; }

void ExpectEqual(const std::string& dir, const CheckOptions& options) {
  const auto checkpoint = std::make_shared<const Checkpoint>(OpenCheckpoint(dir));
  const CheckResult result = CheckModel(checkpoint, options, [](const std::string& line) {
    if (line.find("DIFFERS") != line.npos) ADD_FAILURE() << line;
  });
  EXPECT_EQ(result.differences, 0);
  EXPECT_GE(result.runs, 8);
}

class OracleMatrixTest : public testing::TestWithParam<std::string> {};

TEST_P(OracleMatrixTest, FastEqualsReference) { ExpectEqual(GoldenPath("oracles/" + GetParam()), {}); }

INSTANTIATE_TEST_SUITE_P(Quick, OracleMatrixTest,
                         testing::Values("hf-v4-1", "numpy-v41-1", "numpy-v41-2", "numpy-v41-3"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase(name, '-');
                           return name;
                         });

// The same on models in EXL3 and the published storage forms, and the runs that the reference recorded of them.
class GoldenMatrixTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenMatrixTest, FastEqualsReferenceAndRecordedRuns) {
  ExpectEqual(GoldenPath("models/" + GetParam()), {.golden = GoldenPath("")});
}

INSTANTIATE_TEST_SUITE_P(Quick, GoldenMatrixTest,
                         testing::Values("tiny-v4-native", "tiny-v4-mul1", "tiny-v4-mixed", "tiny-v41-native",
                                         "tiny-v41-mul1", "tiny-v41-mixed"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase(name, '-');
                           return name;
                         });

// --- memory limits

// Reads a device's memory behind the engine's back.
class MeasuredBackend {
 public:
  fast::BackendFactory Factory() {
    return [this](const kernels::DeviceSpec& spec, Profile profile) {
      auto backend = kernels::MakeBackend(spec, profile);
      backend_ = backend.get();
      return backend;
    };
  }
  kernels::Device& device(int index) { return backend_->device(index); }

 private:
  kernels::Backend* backend_ = nullptr;
};

// On a device with room for some of the experts, those are resident and the others come when they are picked;
// what is not resident and not picked stays out.
TEST(MemoryLimitTest, ExpertsThatDoNotFitAreStreamed) {
  const auto checkpoint =
      std::make_shared<const Checkpoint>(OpenCheckpoint(GoldenPath("models/tiny-v41-mul1")));
  NumericsOptions numerics;
  numerics.profile = Profile::kFma;
  ReferenceRuns reference(checkpoint, MakePrompt(checkpoint->config.vocab_size, 40, 1), 8);
  const Expectation& expected = reference.For(numerics).main;
  fast::EngineOptions options;
  options.device = kernels::ParseDeviceSpec("cpu:1,threads=1");
  options.numerics = numerics;
  options.chunk_rows = 16;
  options.max_context = 64;
  options.residency = fast::Residency::kNone;
  options.cpu_lane = fast::CpuLane::kOff;
  MeasuredBackend measured;
  std::size_t without_experts = 0, expert_bytes = 0;
  {
    fast::FastEngine engine(checkpoint, options, measured.Factory());
    without_experts = measured.device(0).memory_used() + engine.kv().SessionBytes(0, options.max_context);
    expert_bytes = static_cast<std::size_t>(engine.experts().spec(0, 0).bytes);
  }
  options.residency = fast::Residency::kAuto;
  const std::size_t limit = without_experts + 20 * expert_bytes;
  options.device = kernels::ParseDeviceSpec("cpu:1,threads=1,mem=" + std::to_string(limit));
  fast::FastEngine engine(checkpoint, options, measured.Factory());
  const auto session = engine.NewSession();
  const std::vector<float> logits = session->Append(expected.ids, expected.tokens());
  EXPECT_TRUE(SameBits(logits, expected.logits));
  EXPECT_LE(measured.device(0).memory_used(), limit);
  const fast::ExpertStats stats = engine.stats().experts;
  EXPECT_GT(stats.picks_resident, 0);
  EXPECT_GT(stats.picks_streamed, 0);
  EXPECT_EQ(stats.picks_cpu, 0);
  EXPECT_GT(stats.bytes_copied, 0);
}

// --- expectations

template <typename Runs>
concept GivesExpectations = requires(Runs&& runs, NumericsOptions numerics) {
  std::forward<Runs>(runs).For(numerics);
};
template <typename Run>
concept GivesRows = requires(Run&& run) {
  std::forward<Run>(run).Rows(0, 1);
};

// What would dangle does not compile.
TEST(ExpectationTest, ATemporaryGivesNoReferences) {
  EXPECT_TRUE(GivesExpectations<ReferenceRuns&>);
  EXPECT_FALSE(GivesExpectations<ReferenceRuns>);
  EXPECT_TRUE(GivesRows<const Expectation&>);
  EXPECT_FALSE(GivesRows<Expectation>);
}

// --- the matrix itself

TEST(MatrixTest, SizesAreAsAdvertised) {
  const auto quick = MakeMatrix(MatrixSize::kQuick, MatrixArithmetics(MatrixSize::kQuick), nullptr);
  EXPECT_GE(quick.size(), 8u);
  EXPECT_LE(quick.size(), 14u);
  const auto full = MakeMatrix(MatrixSize::kFull, MatrixArithmetics(MatrixSize::kFull), nullptr);
  EXPECT_GE(full.size(), 80u);  // eight thread counts by ten arithmetics
  EXPECT_LE(full.size(), 110u);
}

TEST(MatrixTest, NamesAreDistinctAndOneLine) {
  std::vector<std::string> names;
  for (const Configuration& c : MakeMatrix(MatrixSize::kFull, MatrixArithmetics(MatrixSize::kFull), nullptr)) {
    names.push_back(c.Name());
    EXPECT_EQ(names.back().find('\n'), std::string::npos);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(MatrixTest, QuickHasTheExtremes) {
  const auto quick = MakeMatrix(MatrixSize::kQuick, MatrixArithmetics(MatrixSize::kQuick), nullptr);
  const auto has = [&](auto predicate) { return std::any_of(quick.begin(), quick.end(), predicate); };
  for (int threads = 1; threads <= 8; ++threads) {
    EXPECT_TRUE(has([&](const Configuration& c) { return c.device.threads == threads; })) << threads;
  }
  EXPECT_TRUE(has([](const Configuration& c) { return c.chunk_rows == 1; }));
  EXPECT_TRUE(has([](const Configuration& c) { return c.chunk_rows >= 4096; }));
  EXPECT_TRUE(has([](const Configuration& c) { return c.device.count() == 2; }));
  EXPECT_TRUE(has([](const Configuration& c) { return c.placement == Placement::kChanging; }));
  EXPECT_TRUE(has([](const Configuration& c) { return !c.exact_tail; }));
  EXPECT_TRUE(has([](const Configuration& c) { return c.graphs && c.placement == Placement::kAll; }));
  EXPECT_TRUE(has([](const Configuration& c) { return c.graphs && c.placement != Placement::kAll; }));
  EXPECT_TRUE(has([](const Configuration& c) { return c.cancels && c.companions > 0; }));
}

TEST(MatrixTest, AGivenDeviceIsUsedThroughout) {
  const kernels::DeviceSpec device = kernels::ParseDeviceSpec("cpu:2,threads=3,isa=generic");
  for (const Configuration& c :
       MakeMatrix(MatrixSize::kQuick, MatrixArithmetics(MatrixSize::kQuick), &device)) {
    EXPECT_EQ(c.device.count(), 2);
    EXPECT_EQ(c.device.threads, 3);
    EXPECT_EQ(c.device.isa, Isa::kGeneric);
  }
}

TEST(PromptTest, IdsAreInRangeAndDiffer) {
  const auto a = MakePrompt(96, 200, 1), b = MakePrompt(96, 200, 2);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, MakePrompt(96, 200, 1));
  for (const std::int32_t id : a) EXPECT_TRUE(id >= 0 && id < 96);
}

}  // namespace
}  // namespace lockstep::harness
