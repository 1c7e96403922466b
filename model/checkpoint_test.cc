// OpenCheckpoint on tiny checkpoints whose tensors are listed in test_checkpoint.cc by the published tables, on
// the same after one thing is spoiled, and on the oracles' files.
#include "model/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "model/test_checkpoint.h"
#include "model/test_util.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Kind = LinearWeight::Kind;
using Shape = std::vector<std::int64_t>;

Checkpoint Open(const TestCheckpoint& checkpoint) {
  const TestDirectory dir;  // the maps outlive the files' names
  return OpenCheckpoint(checkpoint.Write(dir.path()));
}

void ExpectLinear(const LinearWeight& linear, Kind kind, std::int64_t out_features, std::int64_t in_features) {
  EXPECT_EQ(linear.kind, kind) << linear.name;
  EXPECT_EQ(linear.out_features, out_features) << linear.name;
  EXPECT_EQ(linear.in_features, in_features) << linear.name;
}

TEST(CheckpointTest, BindsV41InItsPublishedForm) {
  const Checkpoint checkpoint = Open(TinyV41());
  const ModelWeights& weights = checkpoint.weights;
  EXPECT_EQ(weights.embed.name, "embed.weight");
  ExpectLinear(weights.head, Kind::kDense, 256, 128);
  EXPECT_FALSE(weights.hc_head.has_value());
  ASSERT_EQ(weights.layers.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    const LayerWeights& layer = weights.layers[i];
    const bool kv_source = i == 1 || i == 3;
    const bool index_source = kv_source || i == 5;
    EXPECT_EQ(layer.compressor.has_value(), kv_source) << i;
    EXPECT_EQ(layer.compressor && layer.compressor->wgate, i == 1) << i;
    EXPECT_EQ(layer.indexer.wk.has_value(), kv_source) << i;
    EXPECT_EQ(layer.indexer.k_norm.empty(), !kv_source) << i;
    EXPECT_EQ(layer.indexer.wq_b.has_value(), index_source) << i;
    EXPECT_EQ(layer.indexer.weights_proj.has_value(), index_source) << i;
    EXPECT_FALSE(layer.indexer.compressor.has_value()) << i;
    EXPECT_EQ(layer.engram.has_value(), i == 1) << i;
    EXPECT_EQ(layer.experts.size(), 8u) << i;
    EXPECT_TRUE(layer.tid2eid.empty()) << i;
    EXPECT_FALSE(layer.gate_bias.empty()) << i;
    EXPECT_FALSE(layer.gate_bias_vl.empty()) << i;
    EXPECT_EQ(layer.hc_attn.fn.shape, (Shape{24, 512})) << i;
  }
  const LayerWeights& layer = weights.layers[1];
  ExpectLinear(layer.wq_b, Kind::kFp8Block, 256, 64);
  EXPECT_EQ(layer.wq_b.name, "layers.1.attn.wq_b");
  EXPECT_EQ(layer.wq_b.block, 32);
  EXPECT_EQ(layer.wq_b.scale.shape, (Shape{8, 2}));
  ExpectLinear(layer.experts[7].w2, Kind::kFp4Row, 128, 64);
  EXPECT_EQ(layer.experts[7].w2.name, "layers.1.ffn.experts.7.w2");
  EXPECT_EQ(layer.experts[7].w2.block, 32);
  EXPECT_EQ(layer.experts[7].w2.scale.shape, (Shape{128, 2}));
  ExpectLinear(layer.shared_expert.w3, Kind::kFp8Block, 64, 128);
  ExpectLinear(*layer.indexer.wk, Kind::kDense, 32, 64);
  EXPECT_TRUE(layer.compressor->ape.empty());
  EXPECT_EQ(layer.engram->table.shape, (Shape{700, 32}));
  EXPECT_EQ(layer.engram->table_scale.shape, (Shape{700, 1}));
  ExpectLinear(layer.engram->wkv, Kind::kFp8Block, 640, 192);
}

TEST(CheckpointTest, IgnoresWhatItKnowsAndDoesNotRun) {
  TestCheckpoint files = TinyV41();
  for (const char* name :
       {"aligner.w1.weight", "image_start", "__align_pad__3", "layers.0.attn.rotary_emb.inv_freq"}) {
    files.tensors[name] = TestTensor(DType::kBF16, {4});
  }
  const Checkpoint checkpoint = Open(files);
  const auto count = [&](std::string_view prefix) {
    return std::count_if(checkpoint.ignored.begin(), checkpoint.ignored.end(),
                         [&](const std::string& name) { return name.starts_with(prefix); });
  };
  EXPECT_EQ(count("mtp.0."), 12 + 2 * 5 + 2 * 3 * 9);
  EXPECT_EQ(checkpoint.ignored.size(), static_cast<std::size_t>(count("mtp.0.")) + 5);
  EXPECT_EQ(count("vision."), 1);
}

TEST(CheckpointTest, BindsV4InItsTestForm) {
  const Checkpoint checkpoint = Open(TinyV4());
  const ModelWeights& weights = checkpoint.weights;
  ASSERT_TRUE(weights.hc_head.has_value());
  EXPECT_EQ(weights.hc_head->scale.shape, Shape{1});
  ASSERT_EQ(weights.layers.size(), 4u);
  EXPECT_EQ(weights.layers[0].tid2eid.shape, (Shape{256, 2}));
  EXPECT_TRUE(weights.layers[0].gate_bias.empty());
  EXPECT_FALSE(weights.layers[0].compressor.has_value());
  const LayerWeights& overlapping = weights.layers[1];
  EXPECT_FALSE(overlapping.gate_bias.empty());
  EXPECT_TRUE(overlapping.tid2eid.empty());
  EXPECT_EQ(overlapping.compressor->ape.shape, (Shape{4, 128}));
  ExpectLinear(overlapping.compressor->wkv, Kind::kDense, 128, 128);
  EXPECT_EQ(overlapping.compressor->norm.shape, Shape{64});
  ExpectLinear(*overlapping.indexer.wq_b, Kind::kDense, 64, 64);
  ExpectLinear(*overlapping.indexer.compressor->wgate, Kind::kDense, 64, 128);
  EXPECT_EQ(overlapping.indexer.compressor->ape.shape, (Shape{4, 64}));
  EXPECT_FALSE(overlapping.indexer.wk.has_value());
  const LayerWeights& disjoint = weights.layers[2];
  EXPECT_EQ(disjoint.compressor->ape.shape, (Shape{8, 64}));
  ExpectLinear(*disjoint.compressor->wgate, Kind::kDense, 64, 128);
  EXPECT_FALSE(disjoint.indexer.wq_b.has_value());
  EXPECT_FALSE(disjoint.indexer.compressor.has_value());
}

TEST(CheckpointTest, OutputGroupsAreRowsOfOneMatrix) {
  TestCheckpoint files = TinyV41();
  std::vector<std::uint8_t>& bytes = files.tensors["layers.2.attn.wo_a.weight"].bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i / 128);  // the row
  const Checkpoint checkpoint = Open(files);
  const std::vector<LinearWeight>& groups = checkpoint.weights.layers[2].wo_a;
  ASSERT_EQ(groups.size(), 2u);
  for (int g = 0; g < 2; ++g) {
    const LinearWeight& group = groups[static_cast<std::size_t>(g)];
    ExpectLinear(group, Kind::kFp8Block, 32, 128);
    EXPECT_EQ(group.row_begin, 32 * g);
    EXPECT_EQ(group.weight.At<std::uint8_t>(group.row_begin * 128), 32 * g);
    EXPECT_EQ(group.weight.shape, (Shape{64, 128}));
    EXPECT_EQ(group.name, "layers.2.attn.wo_a.slice." + std::to_string(g));
  }
}

TEST(CheckpointTest, NamesOfOtherWriters) {
  TestCheckpoint renamed;
  renamed.config = TinyV4().config;
  for (const auto& [name, tensor] : TinyV4().tensors) {
    renamed.tensors[name == "head.weight" ? "lm_head.weight" : "model." + name] = tensor;
  }
  EXPECT_EQ(Open(renamed).weights.head.weight.name, "lm_head.weight");
  TestCheckpoint inverse = TinyV41();
  inverse.Rename("layers.0.attn.wkv.scale", "layers.0.attn.wkv.weight_scale_inv");
  EXPECT_EQ(Open(inverse).weights.layers[0].wkv.scale.name, "layers.0.attn.wkv.weight_scale_inv");
}

TEST(CheckpointTest, AcceptsEveryFloatFormInAnyFloatRole) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    TestCheckpoint files = TinyV4();
    for (const char* name : {"embed.weight", "norm.weight", "head.weight", "layers.0.attn.wq_a.weight",
                             "layers.1.ffn.gate.weight", "layers.1.ffn.gate.bias", "layers.1.hc_attn_fn"}) {
      files.tensors[name] = TestTensor(dtype, files.tensors[name].shape);
    }
    EXPECT_EQ(Open(files).weights.layers[0].wq_a.weight.dtype, dtype);
  }
  TestCheckpoint plain_engram = TinyV41();
  plain_engram.tensors.erase("layers.1.engram.embed.scale");
  plain_engram.tensors["layers.1.engram.embed.weight"] = TestTensor(DType::kBF16, {700, 32});
  EXPECT_TRUE(Open(plain_engram).weights.layers[1].engram->table_scale.empty());
}

TEST(CheckpointTest, BitsPerWeightOfEveryForm) {
  TestCheckpoint files = TinyV41();
  files.MakeExl3("layers.0.attn.wq_b", 256, 64, 5);
  const Checkpoint checkpoint = Open(files);
  const LayerWeights& layer = checkpoint.weights.layers[0];
  EXPECT_EQ(checkpoint.weights.head.BitsPerWeight(), 16.0);
  EXPECT_EQ(layer.wkv.BitsPerWeight(), 8 + 8.0 / 1024);
  EXPECT_EQ(layer.wo_a[1].BitsPerWeight(), 8 + 8.0 / 1024);
  EXPECT_EQ(layer.experts[0].w1.BitsPerWeight(), 4.25);
  // 128 x 256 stored for 64 x 256: 2.5 bits each, and 16 bits a channel.
  EXPECT_EQ(layer.wq_b.BitsPerWeight(), (2.5 * 128 * 256 + 16 * (128 + 256)) / (64 * 256));
}

void MakeWholeModelExl3(TestCheckpoint* files) {
  files->MakeExl3("head", 256, 128, 12);
  const std::string layer = "layers.0.";
  files->MakeExl3(layer + "attn.wq_a", 64, 128, 10);
  files->MakeExl3(layer + "attn.wq_b", 256, 64, 10);
  for (const char* part : {".weight", ".scale"}) files->tensors.erase(layer + "attn.wo_a" + part);
  for (int g = 0; g < 2; ++g) files->MakeExl3(layer + "attn.wo_a.slice." + std::to_string(g), 32, 128, 8);
  files->MakeExl3(layer + "ffn.experts.0.w1", 64, 128, 4);
  files->MakeExl3(layer + "ffn.experts.0.w2", 128, 64, 6);
  files->MakeExl3(layer + "ffn.experts.1.w1", 64, 128, 7);
  files->MakeExl3("layers.1.attn.indexer.wk", 32, 64, 16);
}

TEST(CheckpointTest, BindsAnExl3Pack) {
  TestCheckpoint files = TinyV41();
  MakeWholeModelExl3(&files);
  files.Rename("layers.0.ffn.experts.0.w1.mul1", "layers.0.ffn.experts.0.w1.mcg");
  files.tensors.erase("layers.0.ffn.experts.0.w2.mul1");
  files.tensors["layers.0.ffn.experts.1.w1.mul1"] = TestTensor(DType::kI32, {1});
  for (const char* name : {"su", "sv"}) {
    files.tensors.erase(std::string("layers.0.attn.wq_a.") + name + "h");
    files.tensors[std::string("layers.0.attn.wq_a.") + name] = TestTensor(DType::kI16, {8});
  }
  files.tensors["layers.0.attn.wq_b.bias"] = TestTensor(DType::kF16, {256});
  files.tensors["layers.0.ffn.experts.0.w1.bias"] = TestTensor(DType::kF16, {64});
  files.tensors["layers.0.ffn.experts.1.w1.bias"] = TestTensor(DType::kF16, {128});

  const Checkpoint checkpoint = Open(files);
  const LayerWeights& layer = checkpoint.weights.layers[0];
  ExpectLinear(checkpoint.weights.head, Kind::kExl3, 256, 128);
  EXPECT_EQ(checkpoint.weights.head.exl3.bits(), 6.0);
  ExpectLinear(layer.wq_b, Kind::kExl3, 256, 64);
  EXPECT_EQ(layer.wq_b.exl3.in_padded, 128);
  EXPECT_EQ(layer.wq_b.exl3.out_padded, 256);
  EXPECT_EQ(layer.wq_b.exl3.codebook, Codebook::kMul1);
  EXPECT_EQ(layer.wq_b.exl3.bias.elements(), 256);
  EXPECT_EQ(layer.wq_a.exl3.suh.dtype, DType::kI16);
  EXPECT_EQ(layer.wq_a.exl3.InputScale(127), 1.0f);
  ASSERT_EQ(layer.wo_a.size(), 2u);
  ExpectLinear(layer.wo_a[1], Kind::kExl3, 32, 128);
  EXPECT_EQ(layer.wo_a[1].name, "layers.0.attn.wo_a.slice.1");
  EXPECT_EQ(layer.wo_a[1].row_begin, 0);
  EXPECT_EQ(layer.experts[0].w1.exl3.codebook, Codebook::kMcg);
  EXPECT_EQ(layer.experts[0].w1.exl3.bias.elements(), 64);
  EXPECT_EQ(layer.experts[0].w2.exl3.codebook, Codebook::k3inst);
  EXPECT_EQ(layer.experts[1].w1.exl3.codebook, Codebook::kMul1);
  EXPECT_EQ(layer.experts[1].w1.exl3.bits(), 3.5);
  EXPECT_EQ(layer.experts[1].w1.exl3.bias.elements(), 128);
  ExpectLinear(layer.experts[0].w3, Kind::kFp4Row, 64, 128);
  ExpectLinear(*checkpoint.weights.layers[1].indexer.wk, Kind::kExl3, 32, 64);
}

struct Spoiled {
  const char* what;
  std::function<void(TestCheckpoint*)> spoil;
  std::vector<std::string> parts;
};

void ExpectEachRefused(const TestCheckpoint& good, const std::vector<Spoiled>& cases) {
  for (const Spoiled& spoiled : cases) {
    SCOPED_TRACE(spoiled.what);
    TestCheckpoint files = good;
    spoiled.spoil(&files);
    const TestDirectory dir;
    files.Write(dir.path());
    for (const std::string& part : spoiled.parts) {
      ExpectInputError([&] { OpenCheckpoint(dir.path()); }, {dir.path(), part});
    }
  }
}

auto Erase(const char* name) {
  return [name](TestCheckpoint* files) { files->tensors.erase(name); };
}
auto Replace(const char* name, DType dtype, Shape shape) {
  return [=](TestCheckpoint* files) { files->tensors[name] = TestTensor(dtype, shape); };
}
auto SetByte(const char* name, std::size_t at, int value) {
  return [=](TestCheckpoint* files) { files->tensors[name].bytes[at] = static_cast<std::uint8_t>(value); };
}
auto SetText(const char* key, nlohmann::json value) {
  return [=](TestCheckpoint* files) { files->config["text_config"][key] = value; };
}

TEST(CheckpointBadFile, MissingTensors) {
  std::vector<Spoiled> cases;
  for (const char* name : {"embed.weight", "norm.weight", "head.weight", "layers.3.attn_norm.weight",
                           "layers.5.hc_ffn_base", "layers.0.attn.attn_sink", "layers.0.attn.wq_a.weight",
                           "layers.0.attn.wq_a.scale", "layers.2.attn.wo_a.weight", "layers.4.ffn.gate.bias",
                           "layers.5.ffn.experts.7.w3.weight", "layers.5.ffn.experts.7.w3.scale",
                           "layers.1.attn.compressor.wgate.weight", "layers.5.attn.indexer.weights_proj.weight",
                           "layers.3.attn.indexer.k_norm.weight", "layers.1.engram.q_weight"}) {
    cases.push_back({name, Erase(name), {"tensor '" + std::string(name) + "' is missing, expected"}});
  }
  ExpectEachRefused(TinyV41(), cases);
  ExpectEachRefused(
      TinyV4(),
      {{"hc_head", Erase("hc_head_fn"), {"'hc_head_fn' is missing"}},
       {"hash table", Erase("layers.0.ffn.gate.tid2eid"), {"'layers.0.ffn.gate.tid2eid' is missing"}},
       {"ape", Erase("layers.2.attn.compressor.ape"), {"'layers.2.attn.compressor.ape' is missing"}}});
}

TEST(CheckpointBadFile, TensorsWithoutAPlace) {
  ExpectEachRefused(
      TinyV41(),
      {{"layer beyond the last",
        Replace("layers.6.attn_norm.weight", DType::kBF16, {128}),
        {"'layers.6.attn_norm.weight'"}},
       {"expert beyond the last",
        Replace("layers.0.ffn.experts.8.w1.weight", DType::kBF16, {64, 128}),
        {"experts.8.w1.weight'"}},
       {"compressor of a reader",
        Replace("layers.2.attn.compressor.wkv.weight", DType::kBF16, {64, 128}),
        {"compressor.wkv.weight'"}},
       {"gate at ratio 1",
        Replace("layers.3.attn.compressor.wgate.weight", DType::kBF16, {64, 128}),
        {"compressor.wgate.weight'"}},
       {"a V4 read-out",
        Replace("hc_head_fn", DType::kF32, {4, 512}),
        {"1 tensors have no place", "'hc_head_fn'"}},
       {"a matrix in two forms",
        [](TestCheckpoint* files) {
          const TestTensor weight = files->tensors["layers.0.attn.wq_b.weight"];
          files->MakeExl3("layers.0.attn.wq_b", 256, 64, 4);
          files->tensors["layers.0.attn.wq_b.weight"] = weight;
        },
        {"'layers.0.attn.wq_b.weight'"}},
       {"a name with and without the prefix",
        Replace("model.norm.weight", DType::kBF16, {128}),
        {"'model.norm.weight'"}},
       {"many",
        [](TestCheckpoint* files) {
          for (int i = 0; i < 9; ++i)
            files->tensors["other." + std::to_string(i)] = TestTensor(DType::kU8, {1});
        },
        {"9 tensors have no place in the model of config.json: 'other.0', 'other.1', 'other.2' and more"}}});
}

TEST(CheckpointBadFile, DTypeWrongForTheRole) {
  ExpectEachRefused(
      TinyV41(),
      {{"norm",
        Replace("norm.weight", DType::kI16, {128}),
        {"tensor 'norm.weight': dtype I16, expected BF16, F16 or F32"}},
       {"embedding", Replace("embed.weight", DType::kF8E4M3, {256, 128}), {"'embed.weight': dtype F8_E4M3"}},
       {"matrix",
        Replace("layers.0.attn.wkv.weight", DType::kU8, {64, 128}),
        {"'layers.0.attn.wkv.weight': dtype U8, expected BF16"}},
       {"fp8 scale",
        Replace("layers.0.attn.wkv.scale", DType::kF32, {2, 4}),
        {"'layers.0.attn.wkv.scale': dtype F32, expected F8_E8M0"}},
       {"fp4 scale",
        Replace("layers.0.ffn.experts.0.w1.scale", DType::kF8E4M3, {64, 4}),
        {"w1.scale': dtype F8_E4M3"}},
       {"engram table",
        Replace("layers.1.engram.embed.weight", DType::kU8, {700, 32}),
        {"'layers.1.engram.embed.weight': dtype U8"}}});
  ExpectEachRefused(TinyV4(), {{"hash table",
                                Replace("layers.0.ffn.gate.tid2eid", DType::kI32, {256, 2}),
                                {"'layers.0.ffn.gate.tid2eid': dtype I32, expected I64"}}});
}

TEST(CheckpointBadFile, ConfigAndShapesDisagree) {
  ExpectEachRefused(
      TinyV41(),
      {{"vocabulary",
        SetText("vocab_size", 255),
        {"'embed.weight': shape [256, 128], expected [255, 128] from config.json"}},
       {"layers", SetText("num_hidden_layers", 5), {"compress_ratios"}},
       {"fewer experts",
        SetText("n_routed_experts", 7),
        {"'layers.0.ffn.gate.weight': shape [8, 128], expected [7, 128]"}},
       {"streams", SetText("hc_mult", 2), {"'layers.0.hc_attn_fn': shape [24, 512], expected [8, 256]"}},
       {"groups", SetText("o_groups", 4), {"'layers.0.attn.wo_a.weight': shape [64, 128], expected [128, 64]"}},
       {"engram rows",
        SetText("engram_num_embeddings", {701}),
        {"engram.embed.weight': shape [700, 32], expected [701, 32]"}},
       {"norm of two dimensions",
        Replace("norm.weight", DType::kBF16, {128, 1}),
        {"'norm.weight': shape [128, 1], expected [128]"}},
       {"fp8 tiles",
        Replace("layers.0.attn.wkv.scale", DType::kF8E8M0, {1, 1}),
        {"wkv.scale': shape [1, 1], expected [2, 4]"}},
       {"fp4 not packed",
        Replace("layers.0.ffn.experts.0.w1.weight", DType::kI8, {64, 128}),
        {"shape [64, 128], expected [64, 64]"}},
       {"block size",
        [](TestCheckpoint* files) {
          files->config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
        },
        {"'layers.0.attn.wq_a.scale': shape [2, 4], expected [1, 1]"}}});
}

TEST(CheckpointBadFile, ScalesThatAreNotNumbers) {
  TestCheckpoint files = TinyV41();
  MakeWholeModelExl3(&files);
  ExpectEachRefused(
      files,
      {{"fp8", SetByte("layers.2.attn.wkv.scale", 7, 255), {"'layers.2.attn.wkv.scale': element 7 is NaN"}},
       {"fp4",
        SetByte("layers.2.ffn.experts.3.w2.scale", 255, 255),
        {"'layers.2.ffn.experts.3.w2.scale': element 255 is NaN"}},
       {"suh NaN",
        SetByte("layers.0.attn.wq_b.suh", 9, 0x7e),
        {"'layers.0.attn.wq_b.suh': element 4 is not finite"}},
       {"svh infinite", SetByte("head.svh", 1, 0xfc), {"'head.svh': element 0 is not finite"}}});
  // One of a table's billions of scales is for whoever reads that row.
  SetByte("layers.1.engram.embed.scale", 699, 255)(&files);
  EXPECT_EQ(Open(files).weights.layers.size(), 6u);
}

TEST(CheckpointBadFile, HashTableNamesAnExpertThatIsNot) {
  ExpectEachRefused(TinyV4(), {{"too large",
                                SetByte("layers.0.ffn.gate.tid2eid", 16 * 200 + 8, 8),
                                {"token 200 has expert 8, expected 0 to 7"}},
                               {"negative",
                                SetByte("layers.0.ffn.gate.tid2eid", 7, 0x80),
                                {"token 0 has expert -9223372036854775808"}}});
}

TEST(CheckpointBadFile, Exl3) {
  TestCheckpoint good = TinyV41();
  MakeWholeModelExl3(&good);
  ExpectEachRefused(
      good,
      {{"no input scale", Erase("layers.0.attn.wq_b.suh"), {"'layers.0.attn.wq_b.suh' is missing"}},
       {"no output scale", Erase("layers.0.attn.wq_b.svh"), {"'layers.0.attn.wq_b.svh' is missing"}},
       {"two markers",
        Replace("layers.0.attn.wq_b.mcg", DType::kI32, {}),
        {"'layers.0.attn.wq_b.trellis': has both codebook markers"}},
       {"marker of another type",
        Replace("layers.0.attn.wq_b.mul1", DType::kF32, {}),
        {"wq_b.mul1': expected a codebook marker"}},
       {"marker of two elements",
        Replace("layers.0.attn.wq_b.mul1", DType::kI32, {2}),
        {"wq_b.mul1': expected a codebook marker"}},
       {"4.5 bits",
        Replace("head.trellis", DType::kI16, {8, 16, 72}),
        {"'head.trellis': shape [8, 16, 72]", "16*K"}},
       {"0 bits", Replace("head.trellis", DType::kI16, {8, 16, 0}), {"'head.trellis': shape [8, 16, 0]"}},
       {"9 bits", Replace("head.trellis", DType::kI16, {8, 16, 144}), {"'head.trellis': shape [8, 16, 144]"}},
       {"not a multiple of 8",
        Replace("head.trellis", DType::kI16, {8, 16, 33}),
        {"'head.trellis': shape [8, 16, 33]"}},
       {"two dimensions", Replace("head.trellis", DType::kI16, {8, 16}), {"'head.trellis': shape [8, 16]"}},
       {"another size",
        Replace("head.trellis", DType::kI16, {16, 16, 32}),
        {"'head.trellis': shape [16, 16, 32], expected [8, 16, 32]"}},
       {"trellis of bytes",
        Replace("head.trellis", DType::kU8, {8, 16, 32}),
        {"'head.trellis': dtype U8, expected I16"}},
       {"unpadded scale",
        Replace("layers.0.attn.wq_b.suh", DType::kF16, {64}),
        {"wq_b.suh': shape [64], expected [128]"}},
       {"float scale",
        Replace("layers.0.attn.wq_b.suh", DType::kF32, {128}),
        {"wq_b.suh': dtype F32, expected F16"}},
       {"bias",
        Replace("layers.0.attn.wq_b.bias", DType::kF16, {100}),
        {"wq_b.bias': shape [100], expected [256]"}},
       {"one group missing",
        Erase("layers.0.attn.wo_a.slice.1.trellis"),
        {"'layers.0.attn.wo_a.slice.1.weight' is missing"}},
       {"groups in one matrix",
        [](TestCheckpoint* files) {
          for (const char* part : {".weight", ".scale"})
            files->tensors.erase(std::string("layers.1.attn.wo_a") + part);
          files->MakeExl3("layers.1.attn.wo_a", 64, 128, 4);
        },
        {"'layers.1.attn.wo_a.trellis': expected one EXL3 matrix a group"}}});
}

TEST(CheckpointBadFile, ConfigMissing) {
  const TestDirectory dir;
  TinyV4().Write(dir.path());
  fs::remove(dir.File("config.json"));
  ExpectInputError([&] { OpenCheckpoint(dir.path()); }, {dir.File("config.json"), "No such file"});
}

TEST(CheckpointTest, OpensWithoutReadingTheEngramTable) {
  constexpr std::int64_t kRows = std::int64_t{1} << 28;
  TestCheckpoint files = TinyV41();
  files.config["text_config"]["engram_num_embeddings"] = {kRows};
  files.tensors.erase("layers.1.engram.embed.weight");
  files.tensors.erase("layers.1.engram.embed.scale");
  const TestDirectory dir;
  files.Write(dir.path());
  // A shard of holes: 8 GiB of table and 256 MiB of scales.
  const std::string header =
      R"({"layers.1.engram.embed.weight":{"dtype":"F8_E4M3","shape":[268435456,32],"data_offsets":[0,8589934592]},)"
      R"("layers.1.engram.embed.scale":{"dtype":"F8_E8M0","shape":[268435456,1],"data_offsets":[8589934592,8858370048]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size() & 0xff);
  length[1] = static_cast<char>(header.size() >> 8);
  fs::resize_file(dir.Put("table.safetensors", length + header), 8 + header.size() + 8858370048);

  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const Checkpoint checkpoint = OpenCheckpoint(dir.path());
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(checkpoint.weights.layers[1].engram->table.shape[0], kRows);
  EXPECT_LT(after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt, 20'000)
      << "64 MiB of pages";
}

// The programs that wrote these files are not this one.
TEST(CheckpointTest, OpensTheNumpyOracles) {
  for (const char* name : {"numpy-v41-1", "numpy-v41-2", "numpy-v41-3"}) {
    const std::string dir = std::string(LOCKSTEP_SOURCE_DIR) + "/golden/oracles/" + name;
    const Checkpoint checkpoint = OpenCheckpoint(dir);
    EXPECT_TRUE(checkpoint.config.is_v41());
    EXPECT_TRUE(checkpoint.ignored.empty());
  }
}

TEST(CheckpointTest, OpensTheHuggingFaceOracles) {
  const std::string oracles = std::string(LOCKSTEP_SOURCE_DIR) + "/../shared/oracles/";
  if (!fs::exists(oracles)) {
    std::cout << "SKIPPED: the oracle folder is not beside this checkout\n";
    return;
  }
  for (const auto& [name, layers] : {std::pair("hf-v4-1", 6), std::pair("hf-v4-2", 7)}) {
    const Checkpoint checkpoint = OpenCheckpoint(oracles + name);
    EXPECT_FALSE(checkpoint.config.is_v41());
    EXPECT_EQ(checkpoint.weights.layers.size(), static_cast<std::size_t>(layers));
    EXPECT_TRUE(checkpoint.ignored.empty());
  }
}

}  // namespace
}  // namespace lockstep
