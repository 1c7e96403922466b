// config.json: the released values (V4-Flash, V4.1-Flash, the Hugging Face test model), and every way to get
// one wrong.
#include "model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/test_util.h"

namespace lockstep {
namespace {

using nlohmann::json;

json ReleasedV41() {
  json root = json::parse(R"({
    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 129264, "tie_word_embeddings": false,
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                            "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
    "vision_config": {"hidden_size": 1024},
    "text_config": {
      "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
      "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280,
      "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128, "kv_source_layer_ids": [2, 8, 14, 20],
      "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "candidate_source_layer_id": 20,
      "candidate_topk_blocks": 2048, "candidate_block_size": 8, "index_n_heads": 32, "index_head_dim": 128,
      "index_topk": 512, "rope_theta": 10000, "compress_rope_theta": 160000, "max_position_embeddings": 1048576,
      "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                       "original_max_position_embeddings": 65536},
      "n_routed_experts": 384, "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 2304,
      "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
      "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-20,
      "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4,
      "engram_n_heads": 8, "engram_head_dim": 256, "engram_vocab_size": 16000000, "engram_pad_token_id": 2,
      "engram_compressed_vocab_size": 99092, "num_nextn_predict_layers": 3, "dspark_block_size": 5,
      "dspark_noise_token_id": 128799, "dspark_markov_rank": 256, "dspark_target_layer_ids": [37, 38, 39],
      "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3, "hidden_act": "silu", "attention_bias": false
    }})");
  std::vector<int> ratios = {0, 0};
  ratios.resize(20, 2);
  ratios.resize(40, 1);
  ratios.resize(43, 0);
  root["text_config"]["compress_ratios"] = ratios;
  return root;
}

json ReleasedV4() {
  json root = json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1, "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    "vocab_size": 129280, "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1,
    "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "max_position_embeddings": 1048576, "n_routed_experts": 256, "num_experts_per_tok": 6, "n_shared_experts": 1,
    "moe_intermediate_size": 2048, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 1.5, "num_hash_layers": 3, "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
    "attention_bias": false, "hidden_act": "silu"})");
  std::vector<int> ratios = {0, 0};
  for (int i = 0; i < 20; ++i) ratios.insert(ratios.end(), {4, 128});
  ratios.insert(ratios.end(), {4, 0});
  root["compress_ratios"] = ratios;
  return root;
}

ModelConfig Parse(const json& root) { return ParseConfig(root.dump(), "dir/config.json"); }

void ExpectRefused(const json& root, std::initializer_list<std::string_view> parts) {
  ExpectInputError([&] { Parse(root); }, {"dir/config.json"});
  ExpectInputError([&] { Parse(root); }, parts);
}

TEST(Config, ReadsTheReleasedV41) {
  const ModelConfig config = Parse(ReleasedV41());
  EXPECT_TRUE(config.is_v41());
  EXPECT_EQ(config.architecture, "DeepseekV41ForCausalLM");
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.hidden_size, 5120);
  EXPECT_EQ(config.num_layers, 40);
  EXPECT_EQ(config.num_heads, 64);
  EXPECT_EQ(config.head_dim, 512);
  EXPECT_EQ(config.rope_head_dim, 64);
  EXPECT_EQ(config.q_lora_rank, 1280);
  EXPECT_EQ(config.o_groups, 8);
  EXPECT_EQ(config.o_lora_rank, 1024);
  EXPECT_EQ(config.sliding_window, 128);
  EXPECT_EQ(config.compress_ratios.size(), 40u);
  EXPECT_EQ(config.candidate_source_layer_id, 20);
  EXPECT_EQ(config.candidate_topk_blocks, 2048);
  EXPECT_EQ(config.candidate_block_size, 8);
  EXPECT_EQ(config.index_n_heads, 32);
  EXPECT_EQ(config.index_head_dim, 128);
  EXPECT_EQ(config.index_topk, 512);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.compress_rope_theta, 160000.0);
  EXPECT_EQ(config.yarn, (YarnConfig{16, 32, 1, 65536}));
  EXPECT_EQ(config.max_position_embeddings, 1048576);
  EXPECT_EQ(config.n_routed_experts, 384);
  EXPECT_EQ(config.num_experts_per_tok, 6);
  EXPECT_EQ(config.moe_intermediate_size, 2304);
  EXPECT_EQ(config.routed_scaling_factor, 1.5);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_EQ(config.num_hash_layers, 0);
  EXPECT_EQ(config.swiglu_limit, 10.0);
  EXPECT_EQ(config.hc_mult, 4);
  EXPECT_EQ(config.hc_sinkhorn_iters, 20);
  EXPECT_EQ(config.hc_eps, 1e-6);
  EXPECT_EQ(config.rms_norm_eps, 1e-20);
  EXPECT_EQ(config.engram.layer_ids, (std::vector<int>{1, 14}));
  EXPECT_EQ(config.engram.num_embeddings, (std::vector<std::int64_t>{384006168, 384016682}));
  EXPECT_EQ(config.engram.columns(), 24);
  EXPECT_EQ(config.engram.vocab_size, 16000000);
  EXPECT_EQ(config.engram.pad_id, 2);
  EXPECT_EQ(config.engram.compressed_vocab_size, 99092);
  EXPECT_EQ(config.draft.stages, 3);
  EXPECT_EQ(config.draft.block_size, 5);
  EXPECT_EQ(config.draft.noise_token_id, 128799);
  EXPECT_EQ(config.draft.markov_rank, 256);
  EXPECT_EQ(config.draft.target_layer_ids, (std::vector<int>{37, 38, 39}));
  EXPECT_EQ(config.draft.n_routed_experts, 128);
  EXPECT_EQ(config.draft.num_experts_per_tok, 3);
  EXPECT_EQ(config.weight_block_size, 32);
  EXPECT_EQ(config.bos_token_id, 0);
  EXPECT_EQ(config.eos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, 2);
  EXPECT_EQ(config.image_token_id, 129264);
}

// The roles as the architecture's description lists them.
TEST(Config, V41SourcesOfEveryLayer) {
  const ModelConfig config = Parse(ReleasedV41());
  for (int layer = 0; layer < 40; ++layer) {
    const int kv = layer < 2 ? -1 : layer < 8 ? 2 : layer < 14 ? 8 : layer < 20 ? 14 : 20;
    const int index = layer < 20   ? kv
                      : layer < 24 ? 20
                      : layer < 28 ? 24
                      : layer < 32 ? 28
                      : layer < 36 ? 32
                                   : 36;
    EXPECT_EQ(config.KvSourceOf(layer), kv) << layer;
    EXPECT_EQ(config.IndexSourceOf(layer), index) << layer;
    EXPECT_EQ(config.IsKvSource(layer), layer == kv) << layer;
    EXPECT_EQ(config.IsIndexSource(layer), layer == index) << layer;
    EXPECT_EQ(config.HasEngram(layer), layer == 1 || layer == 14) << layer;
  }
  EXPECT_EQ(config.EngramIndexOf(14), 1);
}

TEST(Config, ReadsTheReleasedV4) {
  const ModelConfig config = Parse(ReleasedV4());
  EXPECT_FALSE(config.is_v41());
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.num_layers, 43);
  EXPECT_EQ(config.num_hash_layers, 3);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.weight_block_size, 128);
  EXPECT_EQ(config.yarn, (YarnConfig{16, 32, 1, 65536}));
  EXPECT_EQ(config.pad_token_id, -1);
  EXPECT_EQ(config.image_token_id, -1);
  EXPECT_EQ(config.draft.stages, 1);
  EXPECT_EQ(config.draft.block_size, 0);
  EXPECT_EQ(config.draft.n_routed_experts, 256);
  EXPECT_TRUE(config.engram.layer_ids.empty());
  for (int layer = 0; layer < 43; ++layer) {
    EXPECT_EQ(config.KvSourceOf(layer), layer < 2 ? -1 : layer) << layer;
    EXPECT_EQ(config.IndexSourceOf(layer), layer < 2 || layer % 2 == 1 ? -1 : layer) << layer;
  }
}

TEST(Config, ReadsTheV4ReleaseThatShipsMoreStagesThanItSays) {
  json root = ReleasedV4();
  root["compress_ratios"].insert(root["compress_ratios"].end(), {0, 0});
  root.update(json{{"dspark_block_size", 5},
                   {"dspark_noise_token_id", 128799},
                   {"dspark_markov_rank", 256},
                   {"dspark_target_layer_ids", {40, 41, 42}}});
  const ModelConfig config = Parse(root);
  EXPECT_EQ(config.draft.stages, 3);
  EXPECT_EQ(config.draft.block_size, 5);
  EXPECT_EQ(config.draft.n_routed_experts, 256);
  EXPECT_EQ(config.draft.num_experts_per_tok, 6);
}

// The Hugging Face tester model: two streams, odd sizes, and what that library writes for absent choices.
json HuggingFaceTester() {
  json root = ReleasedV41()["text_config"];
  root.update(json{{"architectures", {"DeepseekV41ForCausalLM"}},
                   {"vocab_size", 128},
                   {"hidden_size", 64},
                   {"num_hidden_layers", 5},
                   {"num_attention_heads", 4},
                   {"head_dim", 32},
                   {"qk_rope_head_dim", 8},
                   {"q_lora_rank", 32},
                   {"o_groups", 2},
                   {"o_lora_rank", 16},
                   {"sliding_window", 8},
                   {"compress_ratios", {0, 2, 2, 1, 1}},
                   {"kv_source_layer_ids", {1, 3}},
                   {"index_source_layer_ids", {1, 3}},
                   {"candidate_source_layer_id", 3},
                   {"candidate_topk_blocks", 4},
                   {"candidate_block_size", 4},
                   {"index_n_heads", 2},
                   {"index_head_dim", 32},
                   {"index_topk", 2},
                   {"n_routed_experts", 4},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 64},
                   {"hc_mult", 2},
                   {"hc_sinkhorn_iters", 3},
                   {"engram_layer_ids", json::array()},
                   {"rope_scaling", nullptr},
                   {"pad_token_id", nullptr},
                   {"bos_token_id", nullptr},
                   {"eos_token_id", 1},
                   {"num_nextn_predict_layers", 0}});
  return root;
}

TEST(Config, ReadsAFlatV41) {
  const ModelConfig config = Parse(HuggingFaceTester());
  EXPECT_TRUE(config.is_v41());
  EXPECT_EQ(config.hc_mult, 2);
  EXPECT_EQ(config.KvSourceOf(2), 1);
  EXPECT_EQ(config.yarn, YarnConfig{});
  EXPECT_EQ(config.weight_block_size, 32);
  json unnamed = HuggingFaceTester();
  unnamed.erase("architectures");
  EXPECT_EQ(Parse(unnamed), config);
}

TEST(Config, RopeInEveryPublishedForm) {
  json root = ReleasedV4();
  const ModelConfig expected = Parse(root);
  json yarn = root["rope_scaling"];
  yarn["rope_type"] = "yarn";
  yarn.erase("type");
  yarn["factor"] = 16.0;
  root["rope_scaling"] = yarn;
  EXPECT_EQ(Parse(root), expected);

  root.erase("rope_scaling");
  EXPECT_EQ(Parse(root).yarn, YarnConfig{});
  yarn["rope_theta"] = 160000;
  root["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}, {"compress", yarn}};
  root.erase("rope_theta");
  root.erase("compress_rope_theta");
  EXPECT_EQ(Parse(root), expected);

  root["rope_parameters"]["compress"] = {{"rope_type", "default"}, {"rope_theta", 160000}};
  EXPECT_EQ(Parse(root).yarn, YarnConfig{});
  EXPECT_EQ(Parse(root).compress_rope_theta, 160000.0);
}

TEST(Config, IntegersMayBeWrittenAsFloatsAndTheOtherWayRound) {
  json root = ReleasedV4();
  root["hidden_size"] = 4096.0;
  root["swiglu_limit"] = 10;
  root["compress_ratios"][2] = 4.0;
  EXPECT_EQ(Parse(root), Parse(ReleasedV4()));
}

TEST(Config, BlockSizeOfAnExl3Pack) {
  json root = ReleasedV4();
  const json original = {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}};
  root["quantization_config"] = {{"quant_method", "exl3"}, {"bits", 2.9}, {"codebook", "mul1"}};
  EXPECT_EQ(Parse(root).weight_block_size, 128);
  root["quantization_config"]["original_quantization_config"] = original;
  EXPECT_EQ(Parse(root).weight_block_size, 64);
  root.erase("quantization_config");
  EXPECT_EQ(Parse(root).weight_block_size, 128);
  json v41 = ReleasedV41();
  v41["text_config"]["quantization_config"] = original;
  EXPECT_EQ(Parse(v41).weight_block_size, 32);
  v41.erase("quantization_config");
  EXPECT_EQ(Parse(v41).weight_block_size, 64);
}

TEST(Config, OtherRatiosOfV4) {
  json root = ReleasedV4();
  root["compress_ratios"][3] = 16;
  const ModelConfig config = Parse(root);
  EXPECT_EQ(config.ratio(3), 16);
  EXPECT_EQ(config.KvSourceOf(3), 3);
  EXPECT_EQ(config.IndexSourceOf(3), -1);
}

TEST(Config, WritesWhatItReads) {
  json no_yarn = ReleasedV4();
  no_yarn["rope_scaling"] = nullptr;
  no_yarn["quantization_config"]["weight_block_size"] = {64, 64};
  no_yarn["hc_eps"] = 0.1 + 0.2;
  json no_candidates = ReleasedV41();
  no_candidates["text_config"]["candidate_source_layer_id"] = -1;
  for (const json& root : {ReleasedV4(), ReleasedV41(), HuggingFaceTester(), no_yarn, no_candidates}) {
    const ModelConfig config = Parse(root);
    EXPECT_EQ(ParseConfig(ConfigToJson(config), "written"), config) << ConfigToJson(config);
  }
}

TEST(ConfigBadFile, NotJsonOrNotAnObject) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    ExpectInputError([&] { ParseConfig(text, "dir/config.json"); }, {"dir/config.json"});
    ExpectInputError([&] { ParseConfig(text, "dir/config.json"); }, parts);
  };
  refused("", {"malformed JSON at byte"});
  refused("{\"a\":1,}", {"malformed JSON at byte"});
  refused("{\"a\":\"\xc0\"}", {"malformed JSON at byte"});
  refused(std::string("{}\0", 3), {"NUL at byte 2"});
  refused("[]", {"expected a JSON object"});
  refused("{\"a\":1,\"a\":1}", {"key 'a' appears twice"});
  refused("{\"a\":1e999}", {"malformed JSON"});
  refused(std::string(1'000'000, '['), {"nested deeper than 64 levels"});
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  refused(objects, {"nested deeper than 64 levels"});
}

TEST(ConfigBadFile, MissingFile) {
  const TestDirectory dir;
  ExpectInputError([&] { LoadConfig(dir.path()); }, {dir.path() + "/config.json", "No such file"});
  dir.Put("config.json", ReleasedV4().dump());
  EXPECT_EQ(LoadConfig(dir.path()), Parse(ReleasedV4()));
}

TEST(ConfigBadFile, UnknownArchitecture) {
  json root = ReleasedV4();
  root["architectures"] = {"LlamaForCausalLM"};
  ExpectRefused(root,
                {"'LlamaForCausalLM' is not supported", "DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM"});
  root.erase("architectures");
  root["model_type"] = "llama";
  ExpectRefused(root, {"'llama' is not supported"});
  root.erase("model_type");
  ExpectRefused(root, {"key 'model_type': expected a string, found nothing"});
  root["architectures"] = json::array();
  ExpectRefused(root, {"key 'architectures'"});
  root["architectures"] = {"DeepseekV41ForCausalLM"};
  root["model_type"] = "deepseek_v4";
  ExpectRefused(root, {"key 'model_type'", "DeepseekV41ForCausalLM", "found \"deepseek_v4\""});
}

// Every key that shapes the computation is demanded: no default can hide that it is absent.
TEST(ConfigBadFile, MissingKeys) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "head_dim",
                          "qk_rope_head_dim",
                          "q_lora_rank",
                          "o_groups",
                          "o_lora_rank",
                          "sliding_window",
                          "compress_ratios",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "rope_theta",
                          "compress_rope_theta",
                          "max_position_embeddings",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "moe_intermediate_size",
                          "routed_scaling_factor",
                          "norm_topk_prob",
                          "num_hash_layers",
                          "swiglu_limit",
                          "hc_mult",
                          "hc_sinkhorn_iters",
                          "hc_eps",
                          "rms_norm_eps"}) {
    json root = ReleasedV4();
    root.erase(key);
    ExpectRefused(root, {"key '" + std::string(key) + "': expected", "found nothing"});
    root[key] = nullptr;
    ExpectRefused(root, {"key '" + std::string(key) + "': expected", "found nothing"});
    root[key] = "text";
    ExpectRefused(root, {"key '" + std::string(key) + "': expected", "found \"text\""});
  }
  for (const char* key :
       {"kv_source_layer_ids", "index_source_layer_ids", "candidate_topk_blocks", "candidate_block_size",
        "engram_num_embeddings", "engram_max_ngram_size", "engram_n_heads", "engram_head_dim",
        "engram_vocab_size", "engram_pad_token_id", "engram_compressed_vocab_size", "dspark_noise_token_id",
        "dspark_markov_rank", "dspark_target_layer_ids"}) {
    json root = ReleasedV41();
    root["text_config"].erase(key);
    ExpectRefused(root, {"key 'text_config." + std::string(key) + "': expected", "found nothing"});
  }
  for (const char* key : {"factor", "beta_fast", "beta_slow", "original_max_position_embeddings"}) {
    json root = ReleasedV4();
    root["rope_scaling"].erase(key);
    ExpectRefused(root, {"key 'rope_scaling." + std::string(key) + "': expected", "found nothing"});
  }
}

struct BadValue {
  const char* key;
  json value;
  const char* expected;
};

void ExpectEachRefused(const json& good, const std::string& path, const std::vector<BadValue>& cases) {
  for (const BadValue& bad : cases) {
    json root = good;
    json& object = path.empty() ? root : root[path];
    object[bad.key] = bad.value;
    ExpectRefused(root, {"key '" + (path.empty() ? "" : path + ".") + bad.key + "': expected", bad.expected});
  }
}

TEST(ConfigBadFile, ValuesOutOfRange) {
  ExpectEachRefused(ReleasedV4(), "",
                    {{"vocab_size", 0, "an integer from 1"},
                     {"vocab_size", -5, "an integer from 1"},
                     {"vocab_size", 1e18, "an integer from 1"},
                     {"vocab_size", 18446744073709551615ull, "an integer from 1"},
                     {"vocab_size", 1.5, "an integer from 1"},
                     {"vocab_size", true, "an integer from 1"},
                     {"hidden_size", 1 << 30, "an integer from 1"},
                     {"qk_rope_head_dim", 63, "an even number"},
                     {"qk_rope_head_dim", 514, "from 1 to 512"},
                     {"o_groups", 7, "a divisor of num_attention_heads (64)"},
                     {"index_head_dim", 32, "at least qk_rope_head_dim"},
                     {"index_head_dim", 96, "a power of two"},
                     {"num_experts_per_tok", 257, "from 1 to 256"},
                     {"num_hash_layers", 44, "from 0 to 43"},
                     {"norm_topk_prob", 1, "true or false"},
                     {"swiglu_limit", 0, "a number from"},
                     {"rms_norm_eps", 0, "a number from"},
                     {"rms_norm_eps", 2, "a number from"},
                     {"rope_theta", 1, "a number from"},
                     {"rope_scaling", 4, "an object"},
                     {"max_position_embeddings", 0, "an integer from 1"},
                     {"bos_token_id", 129280, "from -1 to 129279"},
                     {"eos_token_id", json::array({1}), "an integer"},
                     {"quantization_config", "fp8", "an object"}});
}

TEST(ConfigBadFile, UnsupportedChoices) {
  ExpectEachRefused(ReleasedV4(), "",
                    {{"num_key_value_heads", 8, "1 (the only supported value)"},
                     {"scoring_func", "softmax", "\"sqrtsoftplus\""},
                     {"topk_method", "greedy", "\"noaux_tc\""},
                     {"hidden_act", "gelu", "\"silu\""},
                     {"tie_word_embeddings", true, "false"},
                     {"attention_bias", true, "false"},
                     {"n_shared_experts", 2, "1"},
                     {"gate_temp", 0.5, "1"},
                     {"engram_layer_ids", {1}, "[]"}});
  ExpectEachRefused(
      ReleasedV4(), "rope_scaling",
      {{"type", "linear", "\"yarn\" or \"default\""}, {"factor", 0.5, "from 1"}, {"beta_slow", 64, "to 32"}});
  ExpectEachRefused(ReleasedV4(), "quantization_config",
                    {{"quant_method", "gptq", "\"fp8\" or \"exl3\""},
                     {"weight_block_size", {128, 64}, "two equal sizes"},
                     {"weight_block_size", json::array({128}), "two equal sizes"},
                     {"weight_block_size", {0, 0}, "from 1"}});
  ExpectEachRefused(ReleasedV41(), "text_config",
                    {{"num_hash_layers", 3, "0"}, {"model_type", "deepseek_v4", "\"deepseek_v41_text\""}});
}

TEST(ConfigBadFile, CompressRatios) {
  json root = ReleasedV4();
  const json good = root["compress_ratios"];
  const auto refused = [&](const json& ratios, const char* expected) {
    root["compress_ratios"] = ratios;
    ExpectRefused(root, {"key 'compress_ratios': expected", expected});
  };
  json ratios = good;
  ratios.erase(42);
  ratios.erase(42);
  refused(ratios, "num_hidden_layers (43) entries");
  ratios = good;
  ratios[2] = 2;
  refused(ratios, "ratios 0, 4");
  ratios[2] = -4;
  refused(ratios, "an integer from 0");
  ratios = good;
  ratios[43] = 4;
  refused(ratios, "0 for every draft stage");
  ratios = good;
  for (int i = 0; i < 40; ++i) ratios.push_back(0);
  refused(ratios, "entries");

  json v41 = ReleasedV41();
  v41["text_config"]["compress_ratios"].erase(42);
  ExpectRefused(v41, {"key 'text_config.compress_ratios'", "num_nextn_predict_layers (3) more"});
  v41 = ReleasedV41();
  v41["text_config"]["compress_ratios"][5] = 4;
  ExpectRefused(v41, {"key 'text_config.compress_ratios'", "ratios 0, 1 or 2"});
}

TEST(ConfigBadFile, SourcesThatDoNotCoverTheLayers) {
  ExpectEachRefused(
      ReleasedV41(), "text_config",
      {{"kv_source_layer_ids", {8, 14, 20}, "a source for layer 2 with compress ratio 2"},
       {"kv_source_layer_ids", {2, 8, 14}, "a source for layer 20 with compress ratio 1"},
       {"kv_source_layer_ids", {0, 2, 8, 14, 20}, "layers whose compress_ratios entry is not 0"},
       {"kv_source_layer_ids", {2, 14, 8, 20}, "ascending"},
       {"kv_source_layer_ids", {2, 8, 8, 14, 20}, "ascending"},
       {"kv_source_layer_ids", {2, 8, 14, 20, 40}, "from 0 to 39"},
       {"index_source_layer_ids", {2, 8, 14, 24}, "at or after its kv source 20"},
       {"index_source_layer_ids", json::array(), "a source for layer 2"},
       {"index_source_layer_ids", {1, 2, 8, 14, 20}, "layers whose compress_ratios entry is not 0"},
       {"candidate_source_layer_id", 21, "one of index_source_layer_ids"},
       {"candidate_source_layer_id", 14, "reads the last kv source"},
       {"candidate_source_layer_id", 40, "to 39"}});
}

TEST(ConfigBadFile, EngramAndDraft) {
  ExpectEachRefused(ReleasedV41(), "text_config",
                    {{"engram_layer_ids", {14, 1}, "ascending"},
                     {"engram_layer_ids", {1, 40}, "from 0 to 39"},
                     {"engram_num_embeddings", json::array({1}), "one number a layer"},
                     {"engram_num_embeddings", {0, 5}, "from 1"},
                     {"engram_max_ngram_size", 1, "from 2"},
                     {"engram_pad_token_id", 99092, "to 99091"},
                     {"engram_compressed_vocab_size", 129281, "to 129280"},
                     {"dspark_num_experts_per_tok", 129, "to 128"},
                     {"dspark_target_layer_ids", {39, 38}, "ascending"},
                     {"num_nextn_predict_layers", 17, "to 16"}});
}

}  // namespace
}  // namespace lockstep
