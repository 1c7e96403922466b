// The contract's bits do not depend on how a sequence is cut into calls. Everything here is memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reference/engine.h"
#include "reference/model.h"
#include "reference/testing/decoded_sequence.h"
#include "reference/testing/oracle_files.h"
#include "reference/testing/same_bits.h"
#include "reference/testing/sequence_models.h"
#include "reference/testing/test_inputs.h"

namespace lockstep::reference {
namespace {

using Ids = std::span<const std::int32_t>;

constexpr std::int64_t kTokens = 300;     // past two groups of 128, and every window
constexpr std::int64_t kFewTokens = 150;  // past one; for the larger models

Options MakeOptions(Profile profile, bool fake_quant) {
  Options options;
  options.numerics.profile = profile;
  options.numerics.fake_quant = fake_quant;
  return options;
}

// --- chunk sizes, through the Engine interface ---------------------------------------------------------------

// Logits of all positions; chunk sizes are taken from `sizes` in turn, over and over.
std::vector<float> RunInChunks(Engine& engine, Ids ids, std::span<const std::int64_t> sizes) {
  const std::unique_ptr<Session> session = engine.NewSession();
  std::vector<float> logits;
  for (std::size_t begin = 0, i = 0; begin < ids.size(); ++i) {
    const std::size_t count = std::min(static_cast<std::size_t>(sizes[i % sizes.size()]), ids.size() - begin);
    const std::vector<float> part =
        session->Append(ids.subspan(begin, count), static_cast<std::int64_t>(count));
    logits.insert(logits.end(), part.begin(), part.end());
    begin += count;
  }
  return logits;
}

std::vector<float> RunWhole(Engine& engine, Ids ids) {
  return engine.NewSession()->Append(ids, static_cast<std::int64_t>(ids.size()));
}

struct ChunkCase {
  ModelFiles model;
  Profile profile;
  bool fake_quant;
  std::int64_t tokens;
  ActQuant act_quant = ActQuant::kAuto;
};

std::string NameOfCase(const ChunkCase& c) {
  return c.model.name + std::string(NameOf(c.profile)) + (c.fake_quant ? "Official" : "NoFakeQuant") +
         (c.act_quant == ActQuant::kAuto ? "" : std::string(NameOf(c.act_quant)));
}

class ChunkSizeTest : public testing::TestWithParam<ChunkCase> {};

TEST_P(ChunkSizeTest, LogitsAreBitIdentical) {
  const ChunkCase& c = GetParam();
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(c.model.dir);
  Options options = MakeOptions(c.profile, c.fake_quant);
  options.numerics.act_quant = c.act_quant;
  const std::unique_ptr<Engine> engine = MakeEngine(checkpoint, options);
  const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, c.tokens);
  const std::vector<float> whole = RunWhole(*engine, ids);
  for (const std::int64_t size : {1, 2, 3, 7, 64, 1000}) {
    ASSERT_TRUE(SameBits(RunInChunks(*engine, ids, std::span(&size, 1)), whole)) << "chunks of " << size;
  }
}

std::vector<ChunkCase> ChunkCases() {
  std::vector<ChunkCase> cases;
  for (const ModelFiles& model : OracleModels()) {
    for (const Profile profile : {Profile::kSm90, Profile::kFma}) {
      for (const bool fake_quant : {true, false}) cases.push_back({model, profile, fake_quant, kTokens});
    }
  }
  for (const ModelFiles& model : GoldenModels()) {
    for (const bool fake_quant : {true, false}) cases.push_back({model, Profile::kFma, fake_quant, kFewTokens});
    cases.push_back({model, Profile::kSm90, true, kFewTokens});
  }
  for (const ActQuant act_quant : {ActQuant::kInt8, ActQuant::kInt16, ActQuant::kNone}) {
    cases.push_back({Golden("TinyV4Mul1", "tiny-v4-mul1"), Profile::kFma, true, kFewTokens, act_quant});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, ChunkSizeTest, testing::ValuesIn(ChunkCases()),
                         [](const auto& param) { return NameOfCase(param.param); });

// --- property: any schedule, any options ---------------------------------------------------------------------

std::vector<std::int64_t> DrawSchedule(Random& random) {
  std::vector<std::int64_t> sizes;
  const std::int64_t largest = std::int64_t{1} << random.Integer(0, 8);
  for (std::int64_t n = random.Integer(1, 12); n > 0; --n) sizes.push_back(random.Integer(1, largest));
  return sizes;
}

std::string Describe(const std::vector<std::int64_t>& sizes) {
  std::string text = "sizes";
  for (const std::int64_t size : sizes) text.append(" ").append(std::to_string(size));
  return text;
}

class RandomScheduleTest : public testing::TestWithParam<ModelFiles> {};

TEST_P(RandomScheduleTest, FiftyDrawsAreBitIdentical) {
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(GetParam().dir);
  const std::unique_ptr<Engine> engine = MakeEngine(checkpoint, MakeOptions(Profile::kFma, true));
  const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, 200);
  const std::vector<float> whole = RunWhole(*engine, ids);
  Random random(62);
  for (int draw = 0; draw < 50; ++draw) {
    const std::vector<std::int64_t> sizes = DrawSchedule(random);
    ASSERT_TRUE(SameBits(RunInChunks(*engine, ids, sizes), whole)) << Describe(sizes);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RandomScheduleTest,
                         testing::Values(Oracle("HfV4b", "hf-v4-b"), Oracle("NumpyV41n3", "numpy-v41-3")),
                         [](const auto& param) { return param.param.name; });

TEST(RandomOptionsTest, FiftyDrawsOfModelProfileQuantizersAndScheduleAreBitIdentical) {
  const std::vector<ModelFiles> models = {Oracle("", "hf-v4-a"), Oracle("", "hf-v4-b"),
                                          Oracle("", "numpy-v41-1"), Oracle("", "numpy-v41-2"),
                                          Golden("", "tiny-v41-mul1")};
  constexpr Profile kProfiles[] = {Profile::kSm90, Profile::kSm90K8,  Profile::kSm80, Profile::kSm75,
                                   Profile::kSm70, Profile::kSm70Jit, Profile::kFma};
  constexpr ActQuant kActQuants[] = {ActQuant::kAuto, ActQuant::kInt8, ActQuant::kInt16, ActQuant::kNone};
  Random random(63);
  for (int draw = 0; draw < 50; ++draw) {
    const ModelFiles& model = models[static_cast<std::size_t>(draw) % models.size()];
    const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(model.dir);
    Options options = MakeOptions(kProfiles[random.Integer(0, 6)], random.Integer(0, 1) == 1);
    options.numerics.act_quant = kActQuants[random.Integer(0, 3)];
    const std::unique_ptr<Engine> engine = MakeEngine(checkpoint, options);
    const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, random.Integer(1, 60));
    const std::vector<std::int64_t> sizes = DrawSchedule(random);
    ASSERT_TRUE(SameBits(RunInChunks(*engine, ids, sizes), RunWhole(*engine, ids)))
        << model.dir << " " << NameOf(options.numerics.profile) << " " << NameOf(options.numerics.act_quant)
        << " fake quant " << options.numerics.fake_quant << " tokens " << ids.size() << " " << Describe(sizes);
  }
}

// --- prefill, then decode ------------------------------------------------------------------------------------

struct SplitCase {
  ModelFiles model;
  Profile profile;
  bool fake_quant;
  std::int64_t tokens;
  std::size_t part = 0;  // the splits are dealt to several tests, for time
};

constexpr std::size_t kParts = 2;

std::string NameOfSplitCase(const SplitCase& c) {
  return c.model.name + std::string(NameOf(c.profile)) + (c.fake_quant ? "Official" : "NoFakeQuant") + "Part" +
         std::to_string(c.part);
}

// One call for the whole prefix.
class WholePrefillTest : public testing::TestWithParam<SplitCase> {};

TEST_P(WholePrefillTest, EverySplitLeavesTheStateOfSingleSteps) {
  const SplitCase& c = GetParam();
  DecodedSequence sequence(c.model, MakeOptions(c.profile, c.fake_quant), c.tokens);
  for (std::size_t split = 1 + c.part; split <= static_cast<std::size_t>(c.tokens); split += kParts) {
    ASSERT_TRUE(sequence.WholePrefillIsSame(split)) << "split " << split;
  }
}

std::vector<SplitCase> WholePrefillCases() {
  std::vector<SplitCase> cases;
  for (std::size_t part = 0; part < kParts; ++part) {
    cases.push_back({Oracle("HfV4b", "hf-v4-b"), Profile::kFma, true, kTokens, part});
    cases.push_back({Oracle("NumpyV41n1", "numpy-v41-1"), Profile::kFma, true, kTokens, part});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, WholePrefillTest, testing::ValuesIn(WholePrefillCases()),
                         [](const auto& param) { return NameOfSplitCase(param.param); });

// The prefix in calls of 16 and one for the rest: the same splits without the quadratic cost.
class ChunkedPrefillTest : public testing::TestWithParam<SplitCase> {};

TEST_P(ChunkedPrefillTest, EverySplitLeavesTheStateOfSingleSteps) {
  constexpr std::size_t kStride = 16;
  const SplitCase& c = GetParam();
  DecodedSequence sequence(c.model, MakeOptions(c.profile, c.fake_quant), c.tokens);
  SequenceState<float> base = sequence.NewState();
  std::size_t begin = 0;
  for (std::size_t split = 1; split <= static_cast<std::size_t>(c.tokens); ++split) {
    SequenceState<float> state = base;
    const std::vector<float> logits = sequence.Run(state, begin, split);
    ASSERT_TRUE(sequence.SameAsDecoded(state, logits, split)) << "split " << split;
    if (split % kStride != 0) continue;
    base = std::move(state);
    begin = split;
  }
}

std::vector<SplitCase> ChunkedPrefillCases() {
  std::vector<SplitCase> cases;
  for (const ModelFiles& model : OracleModels()) {
    for (const bool fake_quant : {true, false}) cases.push_back({model, Profile::kFma, fake_quant, kTokens});
  }
  for (const ModelFiles& model : GoldenModels()) cases.push_back({model, Profile::kFma, true, kFewTokens});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, ChunkedPrefillTest, testing::ValuesIn(ChunkedPrefillCases()),
                         [](const auto& param) { return NameOfSplitCase(param.param); });

// sm90: the splits around group boundaries of every ratio, around window and attention block boundaries, and
// the last.
class SampledPrefillTest : public testing::TestWithParam<SplitCase> {};

TEST_P(SampledPrefillTest, BoundarySplitsLeaveTheStateOfSingleSteps) {
  const SplitCase& c = GetParam();
  DecodedSequence sequence(c.model, MakeOptions(c.profile, c.fake_quant), c.tokens);
  SequenceState<float> base = sequence.NewState();
  std::size_t begin = 0;
  for (const std::size_t boundary : {4, 8, 16, 24, 32, 64, 128, 192, 256, 299}) {
    for (const std::size_t split : {boundary - 1, boundary, boundary + 1}) {
      SequenceState<float> state = base;
      const std::vector<float> logits = sequence.Run(state, begin, split);
      ASSERT_TRUE(sequence.SameAsDecoded(state, logits, split)) << "split " << split;
      if (split != boundary + 1) continue;
      base = std::move(state);
      begin = split;
    }
  }
}

std::vector<SplitCase> SampledPrefillCases() {
  std::vector<SplitCase> cases;
  for (const ModelFiles& model : OracleModels()) cases.push_back({model, Profile::kSm90, true, kTokens});
  cases.push_back({Golden("TinyV4Mul1", "tiny-v4-mul1"), Profile::kSm90, true, kTokens});
  cases.push_back({Golden("TinyV41Mul1", "tiny-v41-mul1"), Profile::kSm90, true, kTokens});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, SampledPrefillTest, testing::ValuesIn(SampledPrefillCases()),
                         [](const auto& param) { return NameOfSplitCase(param.param); });

// The comparison of states can fail: each part of it is looked at.
TEST(SameStateTest, EveryPartCounts) {
  DecodedSequence sequence(Oracle("", "numpy-v41-3"), MakeOptions(Profile::kFma, true), 41);
  SequenceState<float> good = sequence.NewState();
  sequence.Run(good, 0, 41);
  ASSERT_TRUE(SameState(good, good));
  int parts = 0;
  for (std::size_t l = 0; l < good.layers.size(); ++l) {
    for (RowQueue<float> LayerState<float>::*part :
         {&LayerState<float>::window, &LayerState<float>::compressed, &LayerState<float>::index_keys,
          &LayerState<float>::index_scales}) {
      if ((good.layers[l].*part).values.empty()) continue;
      SequenceState<float> bad = good;
      (bad.layers[l].*part).values.back() += 1.0f;
      EXPECT_FALSE(SameState(bad, good)) << "layer " << l;
      ++parts;
    }
    if (good.layers[l].compressor.kv.values.empty()) continue;
    SequenceState<float> bad = good;
    bad.layers[l].compressor.kv.values.back() += 1.0f;
    bad.layers[l].compressor.gate.values.back() += 1.0f;
    EXPECT_FALSE(SameState(bad, good)) << "layer " << l;
    ++parts;
  }
  EXPECT_GT(parts, 15);
  SequenceState<float> bad = good;
  ++bad.recent_ids.back();
  EXPECT_FALSE(SameState(bad, good));
}

// --- Fork and last_rows --------------------------------------------------------------------------------------

TEST(SessionTest, ForkContinuesAsTheOriginalAndLeavesItAlone) {
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(OraclePath("numpy-v41-2"));
  const std::unique_ptr<Engine> engine = MakeEngine(checkpoint, MakeOptions(Profile::kSm90, true));
  const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, 80);
  const std::unique_ptr<Session> session = engine->NewSession();
  session->Append(Ids(ids).first(33), 0);
  const std::unique_ptr<Session> fork = session->Fork();
  const std::vector<float> elsewhere = fork->Append(Ids(ids).first(20), 1);
  EXPECT_EQ(session->position(), 33);
  EXPECT_EQ(fork->position(), 53);
  const std::vector<float> rest = session->Append(Ids(ids).subspan(33), 47);
  const std::vector<float> whole = RunWhole(*engine, ids);
  EXPECT_TRUE(SameBits(rest, std::span(whole).last(rest.size())));
  EXPECT_FALSE(SameBits(elsewhere, std::span(rest).first(elsewhere.size())));
}

TEST(SessionTest, LastRowsAreTheLastRows) {
  const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(OraclePath("hf-v4-a"));
  const std::unique_ptr<Engine> engine = MakeEngine(checkpoint, MakeOptions(Profile::kFma, true));
  const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, 40);
  const std::vector<float> whole = RunWhole(*engine, ids);
  for (const std::int64_t rows : {0, 1, 39, 40}) {
    const std::vector<float> last = engine->NewSession()->Append(ids, rows);
    ASSERT_EQ(last.size(), static_cast<std::size_t>(rows * checkpoint->config.vocab_size));
    EXPECT_TRUE(SameBits(last, std::span(whole).last(last.size())));
  }
}

// --- the stale-index-key quirk -------------------------------------------------------------------------------

// From one and the same state, a step with the quirk differs from a step without it only at even positions, and
// only in single-token calls: ratio-2 sources complete a group at every odd position.
TEST(StaleIndexKeysTest, OnlySingleStepsAtEvenPositionsDiffer) {
  for (const ModelFiles& files : {Oracle("", "numpy-v41-3"), Golden("", "tiny-v41-mul1")}) {
    const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(files.dir);
    Options options = MakeOptions(Profile::kFma, true);
    Model<Contract> plain(*checkpoint, options);
    options.numerics.stale_index_keys = true;
    Model<Contract> stale(*checkpoint, options);
    const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, 120);
    SequenceState<float> state = plain.NewState();
    int different_at_even = 0;
    for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
      SequenceState<float> stale_state = state, pair_state = state, stale_pair_state = state;
      const Matrix<float> a = plain.Forward(state, Ids(ids).subspan(t, 1), 1);
      const Matrix<float> b = stale.Forward(stale_state, Ids(ids).subspan(t, 1), 1);
      const bool same = a == b;
      if (t % 2 == 1) {
        ASSERT_TRUE(same) << files.dir << " position " << t;
        ASSERT_TRUE(SameState(stale_state, state)) << files.dir << " position " << t;
      } else {
        different_at_even += !same;
      }
      if (t % 8 != 0) continue;
      const Matrix<float> pair = plain.Forward(pair_state, Ids(ids).subspan(t, 2), 2);
      ASSERT_EQ(stale.Forward(stale_pair_state, Ids(ids).subspan(t, 2), 2), pair)
          << files.dir << " position " << t;
    }
    // Below index_topk visible entries the selection is everything, whatever the keys.
    EXPECT_GT(different_at_even, 10) << files.dir;
  }
}

TEST(StaleIndexKeysTest, WholePrefillsAndV4AreUntouched) {
  for (const ModelFiles& files : {Oracle("", "numpy-v41-3"), Oracle("", "hf-v4-b")}) {
    const std::shared_ptr<const Checkpoint> checkpoint = OpenShared(files.dir);
    Options options = MakeOptions(Profile::kFma, true);
    const std::vector<std::int32_t> ids = DrawIds(checkpoint->config, 90);
    const std::int64_t one = 1;
    const std::unique_ptr<Engine> plain = MakeEngine(checkpoint, options);
    options.numerics.stale_index_keys = true;
    const std::unique_ptr<Engine> stale = MakeEngine(checkpoint, options);
    EXPECT_TRUE(SameBits(RunWhole(*stale, ids), RunWhole(*plain, ids))) << files.dir;
    const bool single_steps_agree = bool(
        SameBits(RunInChunks(*stale, ids, std::span(&one, 1)), RunInChunks(*plain, ids, std::span(&one, 1))));
    EXPECT_EQ(single_steps_agree, !checkpoint->config.is_v41()) << files.dir;
  }
}

}  // namespace
}  // namespace lockstep::reference
