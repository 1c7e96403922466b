// The check must catch what is broken on purpose, and say where it broke; and it must not cry wolf.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "harness/invariance/check_model.h"
#include "harness/invariance/configuration.h"
#include "harness/invariance/expectation.h"
#include "harness/invariance/run.h"
#include "harness/invariance/small_model.h"
#include "harness/selftest/faults.h"
#include "harness/selftest/plain_attention.h"
#include "harness/selftest/poison_reads.h"
#include "kernels/contract/cpu_isa.h"
#include "model/test_util.h"

namespace lockstep::harness {
namespace {

// A model and what the reference says about it, once for all tests.
struct Subject {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<ReferenceRuns> reference;

  explicit Subject(std::shared_ptr<const Checkpoint> opened) : checkpoint(std::move(opened)) {
    // Past two blocks of 64, so that windows cross one.
    reference =
        std::make_unique<ReferenceRuns>(checkpoint, MakePrompt(checkpoint->config.vocab_size, 84, 1), 32);
  }
};

Subject& Golden(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Subject>> subjects;
  std::unique_ptr<Subject>& subject = subjects[name];
  if (!subject) {
    const std::string dir = std::string(LOCKSTEP_SOURCE_DIR) + "/golden/models/" + name;
    subject = std::make_unique<Subject>(std::make_shared<const Checkpoint>(OpenCheckpoint(dir)));
  }
  return *subject;
}

Subject& Wide() {
  static const TestDirectory directory;
  static Subject subject(
      MakeSmallModel({.layers = 4, .window = 8, .max_positions = 512, .hidden = 512}, directory.path()));
  return subject;
}

// Odd chunks that cut groups, small pages, a companion, every expert through one staging slot or resident.
Configuration BaseConfiguration(bool resident) {
  Configuration configuration;
  configuration.numerics.profile = Profile::kFma;
  configuration.device.isa = BestIsa();
  configuration.device.threads = 1;
  configuration.chunk_rows = 29;
  configuration.attention_tile_rows = 7;
  configuration.page_shift = 2;
  configuration.placement = resident ? Placement::kAll : Placement::kNone;
  configuration.cpu_lane = fast::CpuLane::kOff;
  configuration.staging_slots = 1;
  configuration.companions = 1;
  return configuration;
}

void ExpectCaught(Subject& subject, const KnownFault& known) {
  const Configuration configuration = BaseConfiguration(known.name != "StagedExpertReused");
  const auto difference =
      RunConfiguration(subject.checkpoint, configuration, subject.reference->For(configuration.numerics),
                       nullptr, BrokenBackend(known.fault));
  ASSERT_TRUE(difference.has_value()) << known.name << " was not caught";
  const auto step = Diagnose(subject.checkpoint, configuration, *subject.reference, BrokenBackend(known.fault));
  ASSERT_TRUE(step.has_value()) << known.name << " was not named: " << *difference;
  EXPECT_EQ(step->key.step, known.step) << known.name << ": " << step->Describe();
}

void ExpectPasses(Subject& subject, const Fault& fault) {
  for (const bool resident : {false, true}) {
    const Configuration configuration = BaseConfiguration(resident);
    const auto difference =
        RunConfiguration(subject.checkpoint, configuration, subject.reference->For(configuration.numerics),
                         nullptr, BrokenBackend(fault));
    EXPECT_FALSE(difference.has_value()) << *difference;
  }
}

struct FaultCase {
  std::string model;
  KnownFault fault;
};

std::ostream& operator<<(std::ostream& out, const FaultCase& c) {
  return out << c.fault.name << " on " << c.model;
}

std::vector<FaultCase> AllCases() {
  std::vector<FaultCase> cases;
  for (const char* model : {"tiny-v41-native", "tiny-v4-native"}) {
    for (const KnownFault& fault : CommonFaults()) cases.push_back({model, fault});
    for (const KnownFault& fault : IndexFaults()) cases.push_back({model, fault});
  }
  return cases;
}

class FaultTest : public testing::TestWithParam<FaultCase> {};

TEST_P(FaultTest, IsCaughtAndNamed) { ExpectCaught(Golden(GetParam().model), GetParam().fault); }

INSTANTIATE_TEST_SUITE_P(Broken, FaultTest, testing::ValuesIn(AllCases()), [](const auto& param) {
  return param.param.fault.name + (param.param.model == "tiny-v4-native" ? "V4" : "V41");
});

TEST(SegmentFoldTest, WrongFoldIsCaughtAndNamed) {
  ExpectCaught(Wide(), {"SegmentFold", step::kLogits, SegmentFoldFault()});
}

// --- reads that only poison shows

class PoisonTest : public testing::TestWithParam<PoisonRead> {};

TEST_P(PoisonTest, ReadIsCaughtWithPoisonAndOnlyThen) {
  for (const char* model : {"tiny-v41-native", "tiny-v4-native"}) {
    Subject& subject = Golden(model);
    for (const bool poison : {false, true}) {
      Configuration configuration = BaseConfiguration(/*resident=*/false);
      configuration.staging_slots = 2;
      configuration.poison = poison;
      const auto difference =
          RunConfiguration(subject.checkpoint, configuration, subject.reference->For(configuration.numerics),
                           nullptr, BrokenBackend(GetParam().fault));
      EXPECT_EQ(difference.has_value(), poison) << model << ": " << difference.value_or("not caught");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reads, PoisonTest, testing::ValuesIn(PoisonReads()),
                         [](const auto& param) { return param.param.name; });

// What `lockstep check` prints and counts.
TEST(CheckModelTest, SaysWhichStepOfWhichConfigurationsDiffers) {
  const KnownFault fault = CommonFaults().front();
  CheckOptions options;
  options.device = kernels::ParseDeviceSpec("cpu:1,threads=1");
  options.prompt_tokens = 12;
  options.companion_tokens = 12;
  options.make_backend = BrokenBackend(fault.fault);
  std::vector<std::string> lines;
  const CheckResult result = CheckModel(Golden("tiny-v41-native").checkpoint, options,
                                        [&lines](const std::string& line) { lines.push_back(line); });
  ASSERT_EQ(static_cast<std::size_t>(result.runs), lines.size());
  EXPECT_EQ(result.differences, result.runs);
  for (const std::string& line : lines) {
    EXPECT_NE(line.find("chunk="), line.npos) << line;
    EXPECT_NE(line.find("DIFFERS: first at attn_heads of layer 0, position "), line.npos) << line;
  }
  const std::vector<std::string> all = std::exchange(lines, {});
  options.only = {3, 1};
  EXPECT_EQ(CheckModel(Golden("tiny-v41-native").checkpoint, options, [&lines](const std::string& line) { lines.push_back(line); }).runs, 2);
  EXPECT_EQ(lines, (std::vector<std::string>{all[2], all[0]}));
}

TEST(NoFaultTest, TheWrapperItselfChangesNothing) {
  ExpectPasses(Golden("tiny-v41-native"), {});
  ExpectPasses(Golden("tiny-v4-native"), {});
}

// A device may refuse to capture a step, for its kernels would need new memory.
TEST(NoFaultTest, StepsThatCannotBeCapturedRunAsTheyAre) {
  for (const char* model : {"tiny-v41-mul1", "tiny-v4-native"}) {
    Subject& subject = Golden(model);
    Configuration configuration = BaseConfiguration(/*resident=*/true);
    configuration.graphs = true;
    const auto difference =
        RunConfiguration(subject.checkpoint, configuration, subject.reference->For(configuration.numerics),
                         nullptr, BrokenBackend({.refuses_captures = true}));
    EXPECT_FALSE(difference.has_value()) << *difference;
  }
}

// The linears of a set run in any order, here from the last. The set of the second layer's input gives its step up, which then starts again.
int sets_run = 0;
void RunBackwardsAndGiveUpOnce(kernels::Stream& stream, const kernels::LinearSetArgs& set) {
  if (++sets_run == 7) throw kernels::NotCapturable();
  for (int i = set.count; i-- > 0;) Good().linear(stream, set.linears[i]);
}

TEST(NoFaultTest, AStepThatStartsAgainForgetsTheLinearsOfItsFirstTry) {
  Fault gives_up;
  gives_up.begin = [] { sets_run = 0; };
  gives_up.kernels = [](kernels::KernelTable& table) { table.linear_set.run = &RunBackwardsAndGiveUpOnce; };
  for (const char* model : {"tiny-v41-native", "tiny-v4-native"}) {
    ExpectPasses(Golden(model), gives_up);
    EXPECT_GT(sets_run, 7);
  }
}

// So the mistakes above are what is caught, not the rewriting.
TEST(NoFaultTest, AttentionRewrittenWithoutMistakePasses) {
  Fault rewritten;
  rewritten.kernels = [](kernels::KernelTable& table) {
    table.attention.run = &PlainAttention<AttentionMistake::kNone>;
  };
  ExpectPasses(Golden("tiny-v41-native"), rewritten);
  ExpectPasses(Golden("tiny-v4-native"), rewritten);
}

}  // namespace
}  // namespace lockstep::harness
