// Synthetic checkpoints against the published inventory of both models (spec: names, shapes, counts, bytes) and
// against the loader.
#include "harness/synth/synth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/synth/counter_rng.h"
#include "harness/synth/inventory.h"
#include "harness/synth/matrix_plan.h"
#include "harness/synth/routing.h"
#include "harness/synth/tensor_source.h"
#include "model/checkpoint.h"
#include "model/float_formats.h"
#include "model/test_util.h"
#include "reference/engine.h"
#include "reference/exl3_decode.h"

namespace lockstep::synth {
namespace {

constexpr std::int64_t kPublishedEngramBase = 16'000'000;

using TensorMap = std::map<std::string, TensorToWrite>;

std::int64_t Elements(const TensorToWrite& tensor) {
  std::int64_t n = 1;
  for (const std::int64_t d : tensor.shape) n *= d;
  return n;
}

std::int64_t Bytes(const TensorToWrite& tensor) {
  return Elements(tensor) * static_cast<std::int64_t>(SizeOf(tensor.dtype));
}

TensorMap Tensors(Shape shape, const std::string& bits, int layers = 0) {
  const ModelConfig config = MakeConfig(shape, {.layers = layers, .engram_base = kPublishedEngramBase});
  const MatrixPlan plan(bits, "mul1", config.num_layers, 1);
  TensorMap map;
  for (TensorToWrite& tensor : MakeTensors(config, plan, 0.5, 1)) map.emplace(tensor.name, std::move(tensor));
  return map;
}

// All bytes of a tensor, filled in pieces of `piece` bytes.
std::vector<std::byte> Content(const TensorToWrite& tensor, std::int64_t piece) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(Bytes(tensor)));
  for (std::int64_t offset = 0; offset < Bytes(tensor); offset += piece) {
    const std::int64_t size = std::min(piece, Bytes(tensor) - offset);
    tensor.fill(offset,
                std::span(bytes).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size)));
  }
  return bytes;
}

// The tensors of a list, in memory, with their views.
struct Filled {
  std::vector<std::vector<std::byte>> content;
  std::map<std::string, TensorView> views;

  explicit Filled(const std::vector<TensorToWrite>& tensors) {
    for (const TensorToWrite& tensor : tensors) {
      content.push_back(Content(tensor, kWriteChunk));
      views[tensor.name] = {.name = tensor.name,
                            .file = "",
                            .dtype = tensor.dtype,
                            .shape = tensor.shape,
                            .data = content.back()};
    }
  }
};

double Rms(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(CounterRng, IsSplitMix64PublishedVector) {
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u, kSeed = 1234567;
  const std::uint64_t expected[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                    4593380528125082431u};
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(MixBits(kSeed + (i + 1) * kStep), expected[i]);
}

TEST(CounterRng, NormalHasItsMoments) {
  const CounterRng rng(7, "moments");
  constexpr int kDraws = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = rng.NormalInt(i) / kNormalDeviation;
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kDraws, 0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
}

TEST(Shapes, V41PlanIsThePublishedConfig) {
  const ModelConfig config = MakeConfig(Shape::kV41Flash, {.engram_base = kPublishedEngramBase});
  std::vector<int> ratios(2, 0);
  ratios.insert(ratios.end(), 18, 2);
  ratios.insert(ratios.end(), 20, 1);
  EXPECT_EQ(config.compress_ratios, ratios);
  EXPECT_EQ(config.kv_source_layer_ids, (std::vector<int>{2, 8, 14, 20}));
  EXPECT_EQ(config.index_source_layer_ids, (std::vector<int>{2, 8, 14, 20, 24, 28, 32, 36}));
  EXPECT_EQ(config.candidate_source_layer_id, 20);
  EXPECT_EQ(config.engram.layer_ids, (std::vector<int>{1, 14}));
  EXPECT_EQ(config.engram.num_embeddings, (std::vector<std::int64_t>{384006168, 384016682}));
}

TEST(Shapes, V4PlanIsThePublishedConfig) {
  const ModelConfig config = MakeConfig(Shape::kV4Flash, {});
  ASSERT_EQ(config.num_layers, 43);
  for (int l = 0; l < 43; ++l) EXPECT_EQ(config.ratio(l), l < 2 ? 0 : l % 2 == 0 ? 4 : 128);
  EXPECT_EQ(config.num_hash_layers, 3);
}

TEST(Shapes, EveryDepthGivesAValidConfig) {
  for (const Shape shape : {Shape::kV41Flash, Shape::kV4Flash, Shape::kTinyV41, Shape::kTinyV4}) {
    for (int layers = 1; layers <= 44; ++layers) {
      const ModelConfig config = MakeConfig(shape, {.layers = layers});
      EXPECT_TRUE(ParseConfig(ConfigToJson(config), "config.json") == config) << layers << " layers";
    }
  }
}

TEST(Inventory, NativeV41HasThePublishedTensorsAndBytes) {
  const TensorMap tensors = Tensors(Shape::kV41Flash, "native");
  EXPECT_EQ(tensors.size(), 93418u);
  std::int64_t experts = 0, tables = 0, rest = 0;
  double parameters = 0;
  for (const auto& [name, tensor] : tensors) {
    const bool is_table = name.find("engram.embed.") != name.npos;
    const bool is_expert = name.find(".experts.") != name.npos;
    (is_table ? tables : is_expert ? experts : rest) += Bytes(tensor);
    if (name.ends_with(".scale") || is_table) continue;
    parameters += static_cast<double>(Elements(tensor)) * (tensor.dtype == DType::kI8 ? 2 : 1);
  }
  EXPECT_EQ(experts, 288'777'830'400);
  EXPECT_EQ(tables, 202'758'032'400);
  EXPECT_EQ(rest, 9'846'748'608);
  EXPECT_NEAR(parameters, 551.88e9, 0.005e9);
}

TEST(Inventory, NativeV4HasThePublishedNumberOfParameters) {
  double parameters = 0;
  for (const auto& [name, tensor] : Tensors(Shape::kV4Flash, "native")) {
    if (name.ends_with(".scale") || name.ends_with(".tid2eid")) continue;
    parameters += static_cast<double>(Elements(tensor)) * (tensor.dtype == DType::kI8 ? 2 : 1);
  }
  EXPECT_NEAR(parameters, 284.33e9, 0.005e9);
}

// The published pack counts 47,900 matrices; 1,198 of them belong to its draft stages.
TEST(Inventory, Pack29HasThePublishedMatricesAndRates) {
  const TensorMap tensors = Tensors(Shape::kV41Flash, "2.9");
  const auto is_trellis = [](const auto& entry) { return entry.first.ends_with(".trellis"); };
  EXPECT_EQ(std::count_if(tensors.begin(), tensors.end(), is_trellis), 47900 - 1198);
  const auto bits = [&](const std::string& name) {
    return static_cast<int>(tensors.at(name + ".trellis").shape[2] / 16);
  };
  EXPECT_EQ(bits("layers.17.ffn.experts.383.w2"), 3);
  EXPECT_EQ(bits("layers.18.ffn.experts.0.w1"), 2);
  EXPECT_EQ(bits("layers.22.ffn.experts.0.w3"), 2);
  EXPECT_EQ(bits("layers.23.ffn.experts.0.w3"), 3);
  EXPECT_EQ(bits("layers.10.ffn.shared_experts.w1"), 5);
  EXPECT_EQ(bits("layers.11.ffn.shared_experts.w1"), 4);
  EXPECT_EQ(bits("layers.29.ffn.shared_experts.w1"), 4);
  EXPECT_EQ(bits("layers.30.ffn.shared_experts.w1"), 5);
  EXPECT_EQ(bits("layers.0.attn.wo_a.slice.7"), 5);
  EXPECT_EQ(bits("layers.20.attn.indexer.wk"), 8);
  EXPECT_EQ(bits("layers.1.engram.wkv"), 5);
  EXPECT_EQ(bits("layers.14.engram.wkv"), 4);
  EXPECT_EQ(bits("head"), 6);
}

TEST(Inventory, ContentDoesNotDependOnThePiecesItIsMadeIn) {
  for (const std::string bits : {"native", "mixed"}) {
    const TensorMap tensors = Tensors(Shape::kTinyV4, bits, 3);
    for (const auto& [name, tensor] : tensors) {
      if (Bytes(tensor) < 4096) continue;
      EXPECT_EQ(Content(tensor, kWriteChunk), Content(tensor, 808)) << name;
    }
  }
}

TEST(TensorSource, MatricesHaveTheirDeviation) {
  constexpr std::int64_t kOut = 256, kIn = 384;
  constexpr double kDeviation = 0.0437;
  std::vector<SynthTensor> tensors;
  TensorSource source(3, &tensors);
  source.Normal("bf16.weight", DType::kBF16, {kOut, kIn}, 0, kDeviation);
  source.Fp8("fp8.weight", "fp8.scale", {kOut, kIn, 32, 32}, kDeviation);
  source.Fp4Matrix("fp4", kOut, kIn, kDeviation);
  const Filled filled({tensors.begin(), tensors.end()});
  std::vector<float> bf16, fp8, fp4;
  for (std::int64_t i = 0; i < kOut * kIn; ++i) {
    const std::int64_t row = i / kIn, column = i % kIn;
    bf16.push_back(filled.views.at("bf16.weight").Float(i));
    fp8.push_back(filled.views.at("fp8.weight").Float(i) *
                  filled.views.at("fp8.scale").Float(row / 32 * (kIn / 32) + column / 32));
    const auto packed = filled.views.at("fp4.weight").At<std::uint8_t>(i / 2);
    const float scale = filled.views.at("fp4.scale").Float(row * (kIn / 32) + column / 32);
    fp4.push_back(E2M1ToFloat(static_cast<std::uint8_t>(column % 2 ? packed >> 4 : packed & 15)) * scale);
  }
  // Sampling error of a root mean square over n values is at most 1/sqrt(n) of it here; FP4 also draws its 3072
  // scales.
  EXPECT_NEAR(Rms(bf16), kDeviation, 0.02 * kDeviation);
  EXPECT_NEAR(Rms(fp8), kDeviation, 0.02 * kDeviation);
  EXPECT_NEAR(Rms(fp4), kDeviation, 0.04 * kDeviation);
}

// ||W|| follows from the scales and the decoded weights, because the transforms keep norms.
TEST(TensorSource, Exl3MatricesHaveTheirDeviation) {
  constexpr std::int64_t kOut = 200, kIn = 384;
  constexpr double kDeviation = 0.0437;
  for (const Codebook codebook : {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1}) {
    std::vector<SynthTensor> tensors;
    TensorSource(3, &tensors).Exl3Matrix("m", kOut, kIn, {.codebook = codebook, .bits_x2 = 5}, kDeviation);
    const Filled filled({tensors.begin(), tensors.end()});
    const Exl3Matrix matrix{.codebook = codebook,
                            .bits_x2 = 5,
                            .in_padded = 384,
                            .out_padded = 256,
                            .trellis = filled.views.at("m.trellis")};
    std::vector<float> weights;
    reference::ForEachState(matrix, [&](std::int64_t, std::int64_t, std::uint32_t state) {
      weights.push_back(F16ToFloat(reference::DecodeState(codebook, state)));
    });
    EXPECT_EQ(weights.size(), 384u * 256u);
    const double rms =
        Rms(filled.views.at("m.suh").Floats()) * Rms(weights) * Rms(filled.views.at("m.svh").Floats());
    EXPECT_NEAR(rms, kDeviation, 0.03 * kDeviation) << NameOf(codebook);
  }
}

// What the design asks for: 384 experts, 6 a token, the hotter half takes 75 % of the picks. Picks by a plain
// sort, of other tokens than the bias was made with.
TEST(Routing, BiasGivesTheShareItIsMadeFor) {
  constexpr int kExperts = 384, kPicks = 6, kTokens = 4000;
  for (const double skew : {0.5, 0.6, 0.75, 0.9}) {
    const std::vector<float> bias = PopularityBias(kExperts, kPicks, skew);
    int hot = 0;
    for (int t = 0; t < kTokens; ++t) {
      const CounterRng rng(static_cast<std::uint64_t>(t), "logits");
      std::vector<std::pair<double, int>> scores;
      for (int e = 0; e < kExperts; ++e) {
        const double z = rng.NormalInt(e) / kNormalDeviation;
        scores.emplace_back(std::sqrt(std::log1p(std::exp(z))) + bias[static_cast<std::size_t>(e)], e);
      }
      std::sort(scores.rbegin(), scores.rend());
      for (int i = 0; i < kPicks; ++i) hot += scores[static_cast<std::size_t>(i)].second < kExperts / 2;
    }
    const double share = static_cast<double>(hot) / (kTokens * kPicks);
    RecordProperty("share_at_" + std::to_string(static_cast<int>(skew * 100)), std::to_string(share));
    EXPECT_NEAR(share, skew, 5 * 0.5 / std::sqrt(kTokens * kPicks));
  }
}

TEST(Routing, TableDrawsDistinctExpertsByTheLaw) {
  constexpr int kExperts = 256, kPicks = 6, kTokens = 20000;
  const std::vector<double> law = PopularityLaw(kExperts, kPicks, 0.75);
  const std::vector<int> order = PopularityOrder(kExperts, 1, "order");
  const std::vector<std::int64_t> table = PopularityTable(law, order, kTokens, kPicks, 1, "table");
  ASSERT_EQ(table.size(), static_cast<std::size_t>(kTokens * kPicks));
  std::vector<double> picks(kExperts, 0.0);
  for (int t = 0; t < kTokens; ++t) {
    std::vector<std::int64_t> row(table.begin() + t * kPicks, table.begin() + (t + 1) * kPicks);
    for (const std::int64_t expert : row) picks[static_cast<std::size_t>(expert)] += 1.0 / kTokens;
    std::sort(row.begin(), row.end());
    EXPECT_EQ(std::unique(row.begin(), row.end()), row.end());
  }
  double hot = 0;
  for (int r = 0; r < kExperts / 2; ++r)
    hot += picks[static_cast<std::size_t>(order[static_cast<std::size_t>(r)])];
  EXPECT_NEAR(hot / kPicks, 0.75, 0.02);
}

// Counts the picks of every layer's experts.
class PickCounter : public StepTrace {
 public:
  explicit PickCounter(const ModelConfig& config)
      : picks_(static_cast<std::size_t>(config.num_layers),
               std::vector<int>(static_cast<std::size_t>(config.n_routed_experts))) {}

  void OnStep(std::string_view step, int layer, std::int64_t, std::span<const float> values) override {
    if (step != step::kRouter) return;
    for (const float expert : values.first(values.size() / 2))
      ++picks_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)];
  }
  const std::vector<std::vector<int>>& picks() const { return picks_; }

 private:
  std::vector<std::vector<int>> picks_;
};

std::string Write(const TestDirectory& dir, const SynthOptions& options) {
  const std::string out = dir.File("model");
  WriteCheckpoint(options, out, [](std::int64_t, std::int64_t) {});
  return out;
}

TEST(Synth, RunningModelSpreadsItsPicksAndPrefersTheBiasedHalf) {
  const TestDirectory dir;
  const auto checkpoint = std::make_shared<const Checkpoint>(
      OpenCheckpoint(Write(dir, {.shape = Shape::kTinyV41, .bits = "native", .routing_skew = 0.7})));
  PickCounter counter(checkpoint->config);
  const auto engine = reference::MakeEngine(checkpoint, {.truth = true, .trace = &counter});
  const CounterRng rng(5, "prompt");
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 300; ++i) ids.push_back(static_cast<std::int32_t>(rng.Below(i, 512)));
  engine->NewSession()->Append(ids, 0);
  int hot = 0, all = 0;
  for (int l = 0; l < checkpoint->config.num_layers; ++l) {
    const std::vector<int>& picks = counter.picks()[static_cast<std::size_t>(l)];
    EXPECT_GT(*std::min_element(picks.begin(), picks.end()), 0) << "layer " << l << " never uses an expert";
    const std::vector<float> bias = checkpoint->weights.layers[static_cast<std::size_t>(l)].gate_bias.Floats();
    std::vector<float> sorted = bias;
    std::sort(sorted.rbegin(), sorted.rend());
    for (std::size_t e = 0; e < bias.size(); ++e) {
      all += picks[e];
      if (bias[e] >= sorted[sorted.size() / 2 - 1]) hot += picks[e];
    }
  }
  const double share = static_cast<double>(hot) / all;
  RecordProperty("share_at_70", std::to_string(share));
  EXPECT_NEAR(share, 0.7, 0.08);
}

TEST(Synth, EveryFormLoads) {
  for (const Shape shape : {Shape::kTinyV41, Shape::kTinyV4}) {
    for (const std::string bits : {"native", "2.9", "mixed", "1", "1.5", "8"}) {
      for (const std::string codebook : {"mul1", "mixed"}) {
        const TestDirectory dir;
        const Checkpoint checkpoint =
            OpenCheckpoint(Write(dir, {.shape = shape, .bits = bits, .codebook = codebook}));
        EXPECT_TRUE(checkpoint.ignored.empty());
      }
    }
  }
}

TEST(Synth, ShardsHoldTheTensorsOfOneFile) {
  const TestDirectory dir, sharded_dir;
  const SafetensorsSet whole = SafetensorsSet::OpenDirectory(Write(dir, {.shape = Shape::kTinyV4}));
  const std::string out = Write(sharded_dir, {.shape = Shape::kTinyV4, .shard_bytes = 500'000});
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors.index.json"));
  const SafetensorsSet sharded = SafetensorsSet::OpenDirectory(out);
  ASSERT_EQ(whole.tensors().size(), sharded.tensors().size());
  for (const auto& [name, tensor] : whole.tensors()) {
    const TensorView* other = sharded.Find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(tensor.shape, other->shape) << name;
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), other->data.begin(), other->data.end()))
        << name;
  }
}

TEST(Synth, SeedsDiffer) {
  const TestDirectory first_dir, second_dir;
  const SafetensorsSet first =
      SafetensorsSet::OpenDirectory(Write(first_dir, {.shape = Shape::kTinyV4, .seed = 1}));
  const SafetensorsSet second =
      SafetensorsSet::OpenDirectory(Write(second_dir, {.shape = Shape::kTinyV4, .seed = 2}));
  const TensorView *a = first.Find("embed.weight"), *b = second.Find("embed.weight");
  EXPECT_FALSE(std::equal(a->data.begin(), a->data.end(), b->data.begin()));
}

TEST(Synth, BadOptionsAreNamed) {
  const TestDirectory dir;
  ExpectInputError([] { ParseShape("v5", "--shape"); }, {"--shape", "v5", "v4.1-flash"});
  ExpectInputError([&] { Write(dir, {.bits = "2.7"}); }, {"--bits", "2.7", "mixed"});
  ExpectInputError([&] { Write(dir, {.codebook = "mul2"}); }, {"--codebook", "mul2", "mcg"});
  ExpectInputError([&] { Write(dir, {.routing_skew = 0.2}); }, {"--routing-skew", "0.5"});
  ExpectInputError([&] { Write(dir, {.shape_options = {.layers = -1}}); }, {"--layers"});
  dir.Put("model/occupied", "");
  ExpectInputError([&] { Write(dir, {}); }, {"--out", "not an empty directory"});
}

TEST(Synth, FailureLeavesNothingBehind) {
  const TestDirectory dir;
  ExpectInputError([&] { Write(dir, {.tokenizer = dir.Put("tokenizer.json", "{}")}); }, {"tokenizer.json"});
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    left.push_back(entry.path().filename());
  EXPECT_EQ(left, std::vector<std::string>{"tokenizer.json"});
}

}  // namespace
}  // namespace lockstep::synth
