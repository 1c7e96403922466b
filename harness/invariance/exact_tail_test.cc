// V4.1's exact tail on small models of 40 layers: the logits and all later decode bits of the full pass, with
// the counted work that the windows alone explain.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "fast/engine.h"
#include "harness/check/same_bits_gtest.h"
#include "harness/invariance/expectation.h"
#include "harness/invariance/small_model.h"
#include "kernels/contract/cpu_isa.h"
#include "model/greedy.h"
#include "model/test_util.h"
#include "reference/engine.h"

namespace lockstep::harness {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr int kLayers = 40;
constexpr int kLastKvSource = 20;

std::shared_ptr<const Checkpoint> SharedModel(int window) {
  static const TestDirectory directory;
  static std::shared_ptr<const Checkpoint> models[2];
  std::shared_ptr<const Checkpoint>& model = models[window > 8];
  if (!model) {
    const std::string dir = directory.File(std::to_string(window));
    std::filesystem::create_directories(dir);
    model = MakeSmallModel({.layers = kLayers, .window = window, .max_positions = 65536}, dir);
  }
  return model;
}

fast::EngineOptions Options(Profile profile, bool exact_tail, std::int64_t chunk_rows, std::int64_t tokens) {
  fast::EngineOptions options;
  options.device.isa = BestIsa();
  options.numerics.profile = profile;
  options.chunk_rows = chunk_rows;
  options.exact_tail = exact_tail;
  options.max_context = tokens + 64;
  options.poison = true;
  return options;
}

// The last `last_rows` logits of the prompt, then those of `decode_steps` greedy steps.
struct Outcome {
  std::vector<float> logits;
  Ids ids;
  std::int64_t prompt_token_layers = 0;
};

std::vector<float> Decode(Session& session, std::vector<float> logits, std::int64_t vocab, int decode_steps,
                          Ids* ids) {
  for (int i = 0; i < decode_steps; ++i) {
    const auto last = std::span(logits).last(static_cast<std::size_t>(vocab));
    ids->push_back(ChooseGreedy(last).id);
    const std::vector<float> row = session.Append({&ids->back(), 1}, 1);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

Outcome RunFast(const std::shared_ptr<const Checkpoint>& model, const fast::EngineOptions& options,
                const Ids& prompt, std::int64_t last_rows, int decode_steps) {
  fast::FastEngine engine(model, options);
  const auto session = engine.NewSession();
  Outcome outcome;
  std::vector<float> logits = session->Append(prompt, last_rows);
  outcome.prompt_token_layers = engine.stats().token_layers;
  outcome.logits = Decode(*session, std::move(logits), model->config.vocab_size, decode_steps, &outcome.ids);
  return outcome;
}

Outcome RunReference(const std::shared_ptr<const Checkpoint>& model, Profile profile, const Ids& prompt,
                     std::int64_t last_rows, int decode_steps) {
  reference::Options options;
  options.numerics.profile = profile;
  const auto session = reference::MakeEngine(model, options)->NewSession();
  Outcome outcome;
  outcome.logits = Decode(*session, session->Append(prompt, last_rows), model->config.vocab_size, decode_steps,
                          &outcome.ids);
  return outcome;
}

// Layer by layer from the top: the last layer's feed-forward runs for the rows whose logits are wanted, and
// each layer below for those rows that a window of the layer above it reaches.
std::int64_t ExpectedTokenLayers(std::int64_t tokens, std::int64_t last_rows, int window) {
  std::int64_t sum = 0, needed = last_rows;
  for (int layer = kLayers - 1; layer >= kLastKvSource; --layer) {
    sum += std::min(needed, tokens);
    needed += window - 1;
  }
  return sum + tokens * kLastKvSource;
}

void ExpectSame(const Outcome& got, const Outcome& expected, const std::string& what) {
  EXPECT_TRUE(SameBits(got.logits, expected.logits)) << what;
  EXPECT_EQ(got.ids, expected.ids) << what;
}

TEST(ExactTailTest, ModelHasThePublishedPlan) {
  const ModelConfig& config = SharedModel(8)->config;
  ASSERT_EQ(config.num_layers, kLayers);
  EXPECT_EQ(config.kv_source_layer_ids.back(), kLastKvSource);
  EXPECT_EQ(config.ratio(kLastKvSource), 1);
  EXPECT_EQ(config.candidate_source_layer_id, kLastKvSource);
}

// The design's own numbers: 2,414 tokens at layer 20 and one at layer 39, with the published window.
TEST(ExactTailTest, FormulaGivesTheDesignsNumbers) {
  EXPECT_EQ(ExpectedTokenLayers(100000, 1, 128) - ExpectedTokenLayers(99999, 1, 128), kLastKvSource);
  std::int64_t decoder = 0;
  for (int layer = 20; layer <= 38; ++layer) decoder += 128 + 127 * (38 - layer);
  EXPECT_EQ(ExpectedTokenLayers(100000, 1, 128), 100000 * 20 + decoder + 1);
  EXPECT_EQ(128 + 127 * (38 - 20), 2414);
}

// Chunk boundaries inside the tail, at its start, and far before it; one step for the whole prompt.
TEST(ExactTailTest, Window8EqualsTheReference) {
  constexpr std::int64_t kTokens = 230;  // the tail reaches 141 back
  const auto model = SharedModel(8);
  const Ids prompt = MakePrompt(model->config.vocab_size, kTokens, 3);
  for (const std::int64_t last_rows : {1, 12}) {
    const Outcome expected = RunReference(model, Profile::kFma, prompt, last_rows, 12);
    for (const std::int64_t chunk : {17, 64, 230}) {
      const Outcome got = RunFast(model, Options(Profile::kFma, true, chunk, kTokens), prompt, last_rows, 12);
      ExpectSame(got, expected, "chunk " + std::to_string(chunk) + ", rows " + std::to_string(last_rows));
      EXPECT_EQ(got.prompt_token_layers, ExpectedTokenLayers(kTokens, last_rows, 8));
    }
  }
}

TEST(ExactTailTest, Window8EqualsTheReferenceInSm90) {
  constexpr std::int64_t kTokens = 160;
  const auto model = SharedModel(8);
  const Ids prompt = MakePrompt(model->config.vocab_size, kTokens, 4);
  ExpectSame(RunFast(model, Options(Profile::kSm90, true, 50, kTokens), prompt, 1, 4),
             RunReference(model, Profile::kSm90, prompt, 1, 4), "sm90");
}

// No published model has Engram there, but a config may ask for it: its rows follow from tokens whose streams
// come back from the stash.
TEST(ExactTailTest, EngramInTheDecoderHalfEqualsTheReference) {
  constexpr std::int64_t kTokens = 90;
  const TestDirectory directory;
  const auto model = MakeSmallModel({.layers = 9, .window = 8, .engram_layers = {1, 7}}, directory.path());
  ASSERT_GT(7, model->config.kv_source_layer_ids.back());
  const Ids prompt = MakePrompt(model->config.vocab_size, kTokens, 8);
  const Outcome expected = RunReference(model, Profile::kFma, prompt, 1, 6);
  for (const std::int64_t chunk : {7, 40, 90}) {
    ExpectSame(RunFast(model, Options(Profile::kFma, true, chunk, kTokens), prompt, 1, 6), expected,
               "chunk " + std::to_string(chunk));
  }
}

TEST(ExactTailTest, WithoutTheTailEveryLayerRunsEveryToken) {
  const auto model = SharedModel(8);
  const Ids prompt = MakePrompt(model->config.vocab_size, 200, 5);
  EXPECT_EQ(RunFast(model, Options(Profile::kFma, false, 64, 200), prompt, 1, 0).prompt_token_layers,
            200 * kLayers);
}

struct LongCase {
  int window;
  std::int64_t tokens;
  std::int64_t chunk;
};

class LongPromptTest : public testing::TestWithParam<LongCase> {};

TEST_P(LongPromptTest, TailEqualsFullPass) {
  const LongCase& c = GetParam();
  const auto model = SharedModel(c.window);
  const Ids prompt = MakePrompt(model->config.vocab_size, c.tokens, 6);
  const Outcome full = RunFast(model, Options(Profile::kFma, false, 1000, c.tokens), prompt, 1, 16);
  const Outcome tail = RunFast(model, Options(Profile::kFma, true, c.chunk, c.tokens), prompt, 1, 16);
  ExpectSame(tail, full, "tail");
  EXPECT_EQ(full.prompt_token_layers, c.tokens * kLayers);
  EXPECT_EQ(tail.prompt_token_layers, ExpectedTokenLayers(c.tokens, 1, c.window));
  std::cout << "window " << c.window << ", " << c.tokens << " tokens: " << tail.prompt_token_layers
            << " token-layers with the tail, " << full.prompt_token_layers << " without\n";
}

// LOCKSTEP_TAIL_TOKENS=60000 makes the last two as long as issue and design ask for; they take minutes then.
std::int64_t LongTokens() {
  const char* tokens = std::getenv("LOCKSTEP_TAIL_TOKENS");
  return tokens == nullptr ? 6000 : std::atoll(tokens);
}

INSTANTIATE_TEST_SUITE_P(Windows, LongPromptTest,
                         testing::Values(LongCase{8, 2000, 2000}, LongCase{128, 2000, 333},
                                         LongCase{8, LongTokens(), 1024}, LongCase{128, LongTokens(), 1024}),
                         [](const auto& param) {
                           const bool is_long = param.index >= 2;
                           return "Window" + std::to_string(param.param.window) +
                                  (is_long ? "Long" : "Tokens2000");
                         });

}  // namespace
}  // namespace lockstep::harness
