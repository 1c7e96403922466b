// Models without files against the same models written to files and loaded, by their logits; and their names.
#include "harness/synth/memory_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fast/engine.h"
#include "model/test_util.h"
#include "reference/engine.h"

namespace lockstep::synth {
namespace {

std::vector<std::int32_t> Prompt(const ModelConfig& config) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 70; ++i) ids.push_back((i * 37 + 5) % config.vocab_size);
  return ids;
}

std::vector<float> FastLogits(std::shared_ptr<const Checkpoint> checkpoint, fast::Residency residency, const std::string& device = "cpu") {
  fast::EngineOptions options;
  options.device = kernels::ParseDeviceSpec(device);
  options.residency = residency;
  options.max_context = 128;
  const std::vector<std::int32_t> ids = Prompt(checkpoint->config);
  fast::FastEngine engine(std::move(checkpoint), options);
  return engine.NewSession()->Append(ids, static_cast<std::int64_t>(ids.size()));
}

std::vector<float> ReferenceLogits(std::shared_ptr<const Checkpoint> checkpoint) {
  const std::vector<std::int32_t> ids = Prompt(checkpoint->config);
  return reference::MakeEngine(std::move(checkpoint), {})->NewSession()->Append(ids, static_cast<std::int64_t>(ids.size()));
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct MemoryModelTest : testing::TestWithParam<const char*> {};

TEST_P(MemoryModelTest, HasTheLogitsOfTheWrittenModel) {
  const SynthOptions options = ParseSynthName(GetParam());
  const TestDirectory dir;
  const std::string written = dir.path() + "/model";
  WriteCheckpoint(options, written, [](std::int64_t, std::int64_t) {});
  const std::vector<float> expected = ReferenceLogits(std::make_shared<const Checkpoint>(OpenCheckpoint(written)));

  EXPECT_TRUE(SameBits(ReferenceLogits(MakeCheckpoint(options, Bulk::kInMemory)), expected));
  EXPECT_TRUE(SameBits(FastLogits(MakeCheckpoint(options, Bulk::kInMemory), fast::Residency::kAll), expected));
  EXPECT_TRUE(SameBits(FastLogits(MakeCheckpoint(options, Bulk::kMadeWhereUsed), fast::Residency::kAll), expected));
  EXPECT_TRUE(SameBits(FastLogits(MakeCheckpoint(options, Bulk::kMadeWhereUsed), fast::Residency::kRandom, "cpu:2"), expected));
  EXPECT_TRUE(SameBits(FastLogits(MakeCheckpoint(options, Bulk::kMadeWhereUsed), fast::Residency::kNone), expected));
}

INSTANTIATE_TEST_SUITE_P(Names, MemoryModelTest,
                         testing::Values("synth:tiny-v41", "synth:tiny-v4,seed=7,skew=0.7", "synth:tiny-v41,bits=mixed,codebook=mixed,layers=6",
                                         "synth:tiny-v4,bits=native,layers=4"));

TEST(MemoryModel, HoldsNoBulk) {
  const auto checkpoint = MakeCheckpoint(ParseSynthName("synth:tiny-v41"), Bulk::kMadeWhereUsed);
  const LayerWeights& layer = checkpoint->weights.layers[1];
  EXPECT_EQ(layer.experts[0].w1.exl3.trellis.data.data(), nullptr);
  EXPECT_EQ(layer.wq_a.exl3.suh.data.data(), nullptr);
  EXPECT_EQ(layer.engram->table.data.data(), nullptr);
  EXPECT_NE(layer.attn_norm.data.data(), nullptr);
}

TEST(SynthName, SaysWhatIsNotDefault) {
  for (const std::string name : {"synth:v4-flash", "synth:v4.1-flash,layers=8", "synth:tiny-v41,bits=mixed,codebook=mcg,layers=3,seed=9,skew=0.75,engram=0"}) {
    EXPECT_EQ(SynthName(ParseSynthName(name)), name);
  }
}

TEST(SynthName, BadPartsAreNamed) {
  ExpectInputError([] { ParseSynthName("synth:v5"); }, {"--model", "v5", "v4.1-flash"});
  ExpectInputError([] { ParseSynthName("synth:v4-flash,layers=x"); }, {"--model", "layers=x", "expected"});
  ExpectInputError([] { ParseSynthName("synth:v4-flash,depth=3"); }, {"--model", "depth=3"});
  ExpectInputError([] { ParseSynthName("synth:v4-flash,"); }, {"--model", "''"});
  ExpectInputError([] { ParseSynthName("synth:v4-flash,skew=0.2"); }, {"skew", "0.5"});
  ExpectInputError([] { MakeCheckpoint(ParseSynthName("synth:tiny-v4,bits=2.7"), Bulk::kInMemory); }, {"bits", "2.7"});
}

}  // namespace
}  // namespace lockstep::synth
