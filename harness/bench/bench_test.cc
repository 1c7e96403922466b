// The bench's arithmetic against the published arithmetic of the models (spec: weights, operations and bytes of V4.1-Flash), its made-up states
// and its profile against what an engine does.
#include "harness/bench/bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "harness/bench/synthetic_state.h"
#include "harness/bench/work.h"
#include "harness/synth/memory_checkpoint.h"

namespace lockstep::bench {
namespace {

std::shared_ptr<const Checkpoint> Model(const std::string& name) {
  return synth::MakeCheckpoint(synth::ParseSynthName(name), synth::Bulk::kMadeWhereUsed);
}

TEST(Work, V41LayersCostWhatTheirShapesSay) {
  const auto model = Model("synth:v4.1-flash,bits=3,layers=2,engram=0");
  // Window layers: MoE 495 M operations a token, attention projections 253 M, attention over 128 keys.
  const double layer = 495.5e6 + 253e6 + 4.0 * 64 * 512 * 128, head = 2.0 * 662e6;
  const Work work = DecodeWork(*model, 1000, 1);
  EXPECT_NEAR(work.flops, 2 * layer + head, 0.01 * work.flops);
  // Six routed experts of 35.39 M weights at 3 bits, a shared one at 4, 126.6 M weights of attention at 5, the head at 6.
  const double bits = 6 * 35.39e6 * 3 + 35.39e6 * 4 + 126.6e6 * 5;
  EXPECT_NEAR(work.bytes, (2 * bits + 662e6 * 6) / 8, 0.02 * work.bytes);
  EXPECT_EQ(work.mcg_weights, 0);
  EXPECT_NEAR(work.mul1_weights, 2 * (7 * 35.39e6 + 126.6e6) + 662e6, 0.01 * work.mul1_weights);
}

TEST(Work, IndexScoresGrowWithTheContext) {
  const auto model = Model("synth:tiny-v41");
  const ModelConfig& config = model->config;
  double entries = 0;  // more of them a position, at sources that score everything
  for (int l = 0; l < config.num_layers; ++l) {
    if (config.IsIndexSource(l) && l <= config.candidate_source_layer_id) entries += 1.0 / config.ratio(l);
  }
  const double near = DecodeWork(*model, 1000, 1).flops, far = DecodeWork(*model, 4000, 1).flops;
  EXPECT_NEAR(far - near, 3000 * entries * 2 * config.index_n_heads * config.index_head_dim, 1);
}

TEST(Work, PromptsOfV41PayHalf) {
  const auto model = Model("synth:tiny-v41");
  const ModelConfig& config = model->config;
  const double all = 2.0 * DecodeWork(*model, 1, 1).flops;  // more than any token needs at position 0
  const double half = PromptWork(*model, 0, 4000).flops / 4000;
  EXPECT_LT(half, all);
  // Layers from the last kv source on see only the positions that reach the end.
  const std::int64_t tail = config.num_layers - config.kv_source_layer_ids.back();
  EXPECT_LT(PromptWork(*model, 3000, 1).flops * 4000, PromptWork(*model, 0, 4000).flops * config.num_layers / static_cast<double>(config.num_layers - tail) * 2);
}

TEST(Work, BatchesShareExperts) {
  const auto model = Model("synth:tiny-v4");
  const double one = DecodeWork(*model, 100, 1).bytes, many = DecodeWork(*model, 100, 64).bytes;
  EXPECT_GT(many, one);
  EXPECT_LT(many, 64 * one / 8);
  EXPECT_NEAR(DecodeWork(*model, 100, 64).flops, 64 * DecodeWork(*model, 100, 1).flops, 1);
}

TEST(Work, TheLongestTimeBinds) {
  const Work work{.bytes = 10, .mul1_weights = 30, .mcg_weights = 10, .flops = 100};
  const Rates rates{.read_bytes = 10, .copy_in_bytes = 1, .mma_flops = 100, .mul1_weights = 30, .mcg_weights = 20};
  EXPECT_DOUBLE_EQ(LimitOf(work, 0, rates).seconds, 1.5);
  EXPECT_STREQ(LimitOf(work, 0, rates).bound, "trellis decoding");
  EXPECT_DOUBLE_EQ(LimitOf(work, 7, rates).seconds, 7);
  EXPECT_STREQ(LimitOf(work, 7, rates).bound, "streaming experts");
  EXPECT_STREQ(LimitOf({.bytes = 10, .flops = 1000}, 0, {.read_bytes = 10}).bound, "memory");
}

struct StateTest : testing::TestWithParam<const char*> {};

std::vector<float> LogitsAfterState(const char* name, std::int64_t tokens, std::uint64_t seed, const std::string& device) {
  OpProfile profile;
  fast::EngineOptions options;
  options.device = kernels::ParseDeviceSpec(device);
  options.max_context = tokens + 8;
  fast::FastEngine engine(Model(name), options, profile.Backends());
  const std::unique_ptr<Session> session = engine.NewSession();
  FillState(engine, profile.backend(), tokens, seed, static_cast<fast::FastSession*>(session.get()));
  EXPECT_EQ(session->position(), tokens);
  return session->Append(std::vector<std::int32_t>{3, 1, 4}, 3);
}

TEST_P(StateTest, GivesFiniteLogitsThatFollowFromTheSeed) {
  for (const std::int64_t tokens : {1, 37, 3000}) {
    const std::vector<float> logits = LogitsAfterState(GetParam(), tokens, 5, "cpu"), again = LogitsAfterState(GetParam(), tokens, 5, "cpu:2");
    for (const float value : logits) ASSERT_TRUE(std::isfinite(value));
    ASSERT_EQ(logits.size(), again.size());
    EXPECT_EQ(std::memcmp(logits.data(), again.data(), logits.size() * sizeof(float)), 0) << tokens;
    EXPECT_NE(logits, LogitsAfterState(GetParam(), tokens, 6, "cpu")) << tokens;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StateTest, testing::Values("synth:tiny-v41", "synth:tiny-v4"));

TEST(OpProfile, CountsCallsAndChangesNoBit) {
  OpProfile profile;
  fast::EngineOptions options;
  options.max_context = 64;
  fast::FastEngine engine(Model("synth:tiny-v4,layers=3"), options, profile.Backends());
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5};
  const std::vector<float> plain = engine.NewSession()->Append(ids, 5);
  profile.Start();
  const std::vector<float> timed = engine.NewSession()->Append(ids, 5);
  const std::vector<OpTime> ops = profile.Stop();
  EXPECT_EQ(plain, timed);
  std::int64_t attention = 0, routers = 0;
  double longest = ops.front().seconds;
  for (const OpTime& op : ops) {
    if (op.op == "attention") attention += op.calls;
    if (op.op == "route") routers += op.calls;
    EXPECT_GE(op.seconds, 0);
    EXPECT_LE(op.seconds, longest);
    longest = op.seconds;
  }
  EXPECT_EQ(attention, 3);
  EXPECT_EQ(routers, 3);
  EXPECT_FALSE(profile.running());
}

TEST(Bench, FiguresSayWhatRan) {
  BenchOptions options;
  options.max_context = 400;
  options.decode_steps = 3;
  options.profile_steps = true;
  Bench bench(Model("synth:tiny-v41"), options);
  EXPECT_GT(bench.rates().read_bytes, 0);
  const Figure prefill = bench.Prompt(0, 40), suffix = bench.Prompt(300, 20), decode = bench.Decode(200, 2);
  EXPECT_EQ(prefill.what, "prefill");
  EXPECT_EQ(suffix.what, "suffix");
  EXPECT_EQ(decode.stats.steps, 3);
  for (const Figure* figure : {&prefill, &suffix, &decode}) {
    EXPECT_GT(figure->seconds, 0) << figure->what;
    EXPECT_GT(figure->limit.seconds, 0) << figure->what;
    EXPECT_GT(ShareOf(*figure, "attention"), 0) << figure->what;
    EXPECT_GT(ShareOf(*figure, "index_select"), 0) << figure->what;
  }
}

}  // namespace
}  // namespace lockstep::bench
