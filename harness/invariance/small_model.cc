#include "harness/invariance/small_model.h"

#include <cstddef>
#include <fstream>

#include "harness/synth/inventory.h"
#include "harness/synth/matrix_plan.h"
#include "harness/synth/shapes.h"
#include "model/safetensors.h"
#include "model/text/engram_hash.h"

namespace lockstep::harness {

namespace {

EngramConfig SmallEngram(const std::vector<int>& layers) {
  EngramConfig engram;
  engram.layer_ids = layers;
  engram.max_ngram_size = 3;
  engram.n_heads = 2;
  engram.head_dim = 32;
  engram.vocab_size = 60;
  engram.pad_id = 2;
  engram.compressed_vocab_size = 80;
  engram.num_embeddings.assign(layers.size(), std::int64_t{1} << 20);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    engram.num_embeddings[i] = MakeEngramHash(engram, static_cast<int>(i)).rows();
  }
  return engram;
}

// Ids beyond the compressed vocabulary share those of its start.
void WriteTokenMap(const ModelConfig& config, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (std::int32_t id = 0; id < config.vocab_size; ++id) {
    const std::int32_t compressed = id % config.engram.compressed_vocab_size;
    file.write(reinterpret_cast<const char*>(&compressed), sizeof compressed);
  }
}

}  // namespace

ModelConfig SmallConfig(const SmallModel& model) {
  const bool v41 = model.family == ModelFamily::kV41;
  ModelConfig config = synth::MakeConfig(v41 ? synth::Shape::kTinyV41 : synth::Shape::kTinyV4,
                                         {.layers = model.layers, .engram_base = 0});
  config.vocab_size = 96;
  config.hidden_size = model.hidden;
  config.num_heads = 2;
  config.head_dim = 64;
  config.rope_head_dim = 32;
  config.q_lora_rank = 32;
  config.o_groups = 2;
  config.o_lora_rank = 32;
  config.sliding_window = model.window;
  config.index_n_heads = 2;
  config.index_head_dim = 32;
  config.n_routed_experts = 4;
  config.num_experts_per_tok = 2;
  config.moe_intermediate_size = 32;
  config.max_position_embeddings = model.max_positions;
  if (!model.engram_layers.empty()) config.engram = SmallEngram(model.engram_layers);
  return config;
}

std::shared_ptr<const Checkpoint> MakeSmallModel(const SmallModel& model, const std::string& dir) {
  const ModelConfig config = SmallConfig(model);
  std::ofstream(dir + "/config.json") << ConfigToJson(config);
  if (!config.engram.layer_ids.empty()) WriteTokenMap(config, dir + "/engram_token_map.i32");
  const synth::MatrixPlan plan("native", "mul1", config.num_layers, model.seed);
  WriteSafetensors(dir + "/model.safetensors", synth::MakeTensors(config, plan, 0.5, model.seed));
  return std::make_shared<const Checkpoint>(OpenCheckpoint(dir));
}

}  // namespace lockstep::harness
