#include "harness/synth/shapes.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "model/error.h"
#include "model/text/engram_hash.h"

namespace lockstep::synth {
namespace {

constexpr std::array<std::pair<std::string_view, Shape>, 4> kShapes = {{{"v4.1-flash", Shape::kV41Flash},
                                                                        {"v4-flash", Shape::kV4Flash},
                                                                        {"tiny-v41", Shape::kTinyV41},
                                                                        {"tiny-v4", Shape::kTinyV4}}};

constexpr int kWindowLayers = 2;
constexpr int kMaxDepth = 256;

// What both published models share.
ModelConfig PublishedConfig() {
  ModelConfig config;
  config.vocab_size = 129280;
  config.num_heads = 64;
  config.head_dim = 512;
  config.rope_head_dim = 64;
  config.o_groups = 8;
  config.o_lora_rank = 1024;
  config.sliding_window = 128;
  config.index_head_dim = 128;
  config.index_topk = 512;
  config.rope_theta = 10000;
  config.compress_rope_theta = 160000;
  config.yarn = {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_max_position_embeddings = 65536};
  config.max_position_embeddings = 1048576;
  config.num_experts_per_tok = 6;
  config.routed_scaling_factor = 1.5;
  config.swiglu_limit = 10;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 20;
  config.hc_eps = 1e-6;
  return config;
}

// What both tiny models share. Widths are multiples of 128, which EXL3 needs, but the index key's, which it
// pads; a query reaches past its window after 24 tokens, past index_topk entries after 16, and swiglu_limit is
// low enough to clamp.
void Shrink(ModelConfig* config) {
  config->vocab_size = 512;
  config->hidden_size = 128;
  config->num_heads = 4;
  config->head_dim = 128;
  config->q_lora_rank = 128;
  config->o_groups = 4;
  config->o_lora_rank = 128;
  config->sliding_window = 24;
  config->index_n_heads = 4;
  config->index_head_dim = 64;
  config->index_topk = 16;
  config->yarn.original_max_position_embeddings = 256;
  config->max_position_embeddings = 4096;
  config->n_routed_experts = 6;
  config->num_experts_per_tok = 2;
  config->moe_intermediate_size = 128;
  config->swiglu_limit = 2;
}

// `count` layers spread evenly over [begin, end), the first of them at begin.
std::vector<int> Spread(int begin, int end, int count) {
  std::vector<int> layers;
  for (int i = 0; i < count; ++i) {
    const int layer = begin + (end - begin) * i / count;
    if (layer < end && (layers.empty() || layer > layers.back())) layers.push_back(layer);
  }
  return layers;
}

// Published: layers 2..19 at ratio 2 with kv sources 2, 8, 14; 20..39 at ratio 1 with one kv source and an
// index every 4 layers.
void PlanV41(int layers, int index_interval, ModelConfig* config) {
  constexpr int kRatio2Layers = 18, kCompressedLayers = 38, kRatio2Sources = 3;
  const int compressed = std::max(0, layers - kWindowLayers);
  const int ratio2 = (compressed * kRatio2Layers + kCompressedLayers / 2) / kCompressedLayers;
  const int first_ratio1 = std::min(layers, kWindowLayers + ratio2);
  config->num_layers = layers;
  config->compress_ratios.assign(static_cast<std::size_t>(layers), 0);
  std::fill(config->compress_ratios.begin() + std::min(layers, kWindowLayers), config->compress_ratios.end(),
            2);
  std::fill(config->compress_ratios.begin() + first_ratio1, config->compress_ratios.end(), 1);
  config->kv_source_layer_ids = Spread(kWindowLayers, first_ratio1, kRatio2Sources);
  config->index_source_layer_ids = config->kv_source_layer_ids;
  if (first_ratio1 == layers) {
    config->candidate_topk_blocks = config->candidate_block_size = 0;
    return;
  }
  config->kv_source_layer_ids.push_back(first_ratio1);
  const int indexer_count = (layers - first_ratio1 + index_interval - 1) / index_interval;
  const std::vector<int> indexers = Spread(first_ratio1, layers, indexer_count);
  config->index_source_layer_ids.insert(config->index_source_layer_ids.end(), indexers.begin(), indexers.end());
  config->candidate_source_layer_id = first_ratio1;
}

// Table rows are what the primes need, as in the published tables.
void SizeEngramTables(EngramConfig* engram) {
  engram->num_embeddings.assign(engram->layer_ids.size(), std::int64_t{1} << 40);
  for (std::size_t i = 0; i < engram->layer_ids.size(); ++i) {
    engram->num_embeddings[i] = MakeEngramHash(*engram, static_cast<int>(i)).rows();
  }
}

ModelConfig V41Config() {
  ModelConfig config = PublishedConfig();
  config.family = ModelFamily::kV41;
  config.architecture = "DeepseekV41ForCausalLM";
  config.hidden_size = 5120;
  config.q_lora_rank = 1280;
  config.index_n_heads = 32;
  config.candidate_topk_blocks = 2048;
  config.candidate_block_size = 8;
  config.n_routed_experts = 384;
  config.moe_intermediate_size = 2304;
  config.rms_norm_eps = 1e-20;
  config.weight_block_size = 32;
  config.pad_token_id = 2;
  config.image_token_id = 129264;
  config.engram.layer_ids = {1, 14};
  config.engram.max_ngram_size = 4;
  config.engram.n_heads = 8;
  config.engram.head_dim = 256;
  config.engram.vocab_size = kDefaultEngramBase;
  config.engram.pad_id = 2;
  config.engram.compressed_vocab_size = 99092;
  return config;
}

ModelConfig V4Config() {
  ModelConfig config = PublishedConfig();
  config.family = ModelFamily::kV4;
  config.architecture = "DeepseekV4ForCausalLM";
  config.hidden_size = 4096;
  config.q_lora_rank = 1024;
  config.index_n_heads = 64;
  config.n_routed_experts = 256;
  config.moe_intermediate_size = 2048;
  config.num_hash_layers = 3;
  config.rms_norm_eps = 1e-6;
  config.weight_block_size = 128;
  return config;
}

void PlanV4(int layers, ModelConfig* config) {
  config->num_layers = layers;
  config->num_hash_layers = std::min(config->num_hash_layers, layers);
  for (int l = 0; l < layers; ++l) {
    config->compress_ratios.push_back(l < kWindowLayers ? 0 : l % 2 == 0 ? kOverlapRatio : 128);
  }
}

// Engram sits on layer 1 and, in the published model, on the last kv source of the ratio-2 half.
void PlaceEngram(ModelConfig* config) {
  std::vector<int> layers = {1};
  for (const int source : config->kv_source_layer_ids) {
    if (config->ratio(source) == 2) layers.resize(1), layers.push_back(source);
  }
  std::erase_if(layers, [&](int layer) { return layer >= config->num_layers; });
  config->engram.layer_ids = layers;
}

void FinishEngram(std::int64_t base, ModelConfig* config) {
  if (base >= 0) config->engram.vocab_size = base;
  PlaceEngram(config);
  if (config->engram.vocab_size == 0 || config->engram.layer_ids.empty()) {
    config->engram = {};
    return;
  }
  SizeEngramTables(&config->engram);
}

ModelConfig TinyV41Config() {
  ModelConfig config = V41Config();
  Shrink(&config);
  config.image_token_id = -1;
  config.candidate_topk_blocks = 8;
  config.candidate_block_size = 4;
  config.engram.n_heads = 2;
  config.engram.head_dim = 64;
  config.engram.vocab_size = 200;
  config.engram.compressed_vocab_size = 400;
  return config;
}

ModelConfig TinyV4Config() {
  ModelConfig config = V4Config();
  Shrink(&config);
  config.num_hash_layers = 2;
  return config;
}

int Depth(int asked, int published) { return asked == 0 ? published : asked; }

}  // namespace

Shape ParseShape(std::string_view name, std::string_view flag) {
  std::string names;
  for (const auto& [shape_name, shape] : kShapes) {
    if (shape_name == name) return shape;
    names += (names.empty() ? "" : ", ") + std::string(shape_name);
  }
  throw InputError(std::string(flag) + ": unknown shape '" + std::string(name) + "', expected one of " + names);
}

std::string_view NameOf(Shape shape) {
  for (const auto& [name, named] : kShapes) {
    if (named == shape) return name;
  }
  LOCKSTEP_CHECK(false);
}

ModelConfig MakeConfig(Shape shape, const ShapeOptions& options) {
  if (options.layers < 0 || options.layers > kMaxDepth) {
    throw InputError("--layers: expected 1 to " + std::to_string(kMaxDepth));
  }
  if (options.engram_base > 100'000'000) throw InputError("--engram-base: expected at most 100000000");
  const bool tiny = shape == Shape::kTinyV41 || shape == Shape::kTinyV4;
  ModelConfig config;
  if (shape == Shape::kV4Flash || shape == Shape::kTinyV4) {
    config = tiny ? TinyV4Config() : V4Config();
    PlanV4(Depth(options.layers, tiny ? 7 : 43), &config);
  } else {
    config = tiny ? TinyV41Config() : V41Config();
    PlanV41(Depth(options.layers, tiny ? 10 : 40), tiny ? 2 : 4, &config);
    FinishEngram(options.engram_base, &config);
  }
  config.draft.n_routed_experts = config.n_routed_experts;
  config.draft.num_experts_per_tok = config.num_experts_per_tok;
  return config;
}

void SetVocabulary(int vocab_size, std::int32_t compressed, ModelConfig* config) {
  config->vocab_size = vocab_size;
  if (config->engram.layer_ids.empty()) return;
  config->engram.compressed_vocab_size = compressed;
}

}  // namespace lockstep::synth
