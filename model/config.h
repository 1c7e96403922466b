// config.json of DeepSeek-V4 and V4.1, validated. Values and key names: the published files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class ModelFamily { kV4, kV41 };

// V4's ratio whose groups overlap and whose entries are selected by an indexer; larger ratios have disjoint
// groups and no indexer.
inline constexpr int kOverlapRatio = 4;

// YaRN frequency scaling of the layers with compressed KV; factor 1 means none.
struct YarnConfig {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::int64_t original_max_position_embeddings = 0;

  bool operator==(const YarnConfig&) const = default;
};

// V4.1's hashed n-gram memory; layer_ids empty when the model has none.
struct EngramConfig {
  std::vector<int> layer_ids;
  std::vector<std::int64_t> num_embeddings;  // table rows, one a layer of layer_ids
  int max_ngram_size = 0;                    // 4: 2-, 3- and 4-grams
  int n_heads = 0;
  int head_dim = 0;
  std::int64_t vocab_size = 0;  // where the search for bucket primes starts
  std::int32_t pad_id = 0;      // compressed id that stands before the first token
  std::int32_t compressed_vocab_size = 0;

  int columns() const { return (max_ngram_size - 1) * n_heads; }  // table rows read a token and layer

  bool operator==(const EngramConfig&) const = default;
};

// Draft stages that the checkpoint carries after its layers (mtp.*).
struct DraftConfig {
  int stages = 0;  // num_nextn_predict_layers as shipped, or the stages found in compress_ratios
  int block_size = 0;
  std::int32_t noise_token_id = -1;
  int markov_rank = 0;
  std::vector<int> target_layer_ids;
  int n_routed_experts = 0;
  int num_experts_per_tok = 0;

  bool operator==(const DraftConfig&) const = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kV4;
  std::string architecture;

  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int head_dim = 0;
  int rope_head_dim = 0;
  int q_lora_rank = 0;
  int o_groups = 0;
  int o_lora_rank = 0;
  int sliding_window = 0;
  std::vector<int> compress_ratios;  // one a layer; 0 = window only

  std::vector<int> kv_source_layer_ids;     // V4.1
  std::vector<int> index_source_layer_ids;  // V4.1
  int candidate_source_layer_id = -1;       // V4.1; -1 = no candidate blocks
  int candidate_topk_blocks = 0;
  int candidate_block_size = 0;
  int index_n_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;

  double rope_theta = 0;
  double compress_rope_theta = 0;
  YarnConfig yarn;
  std::int64_t max_position_embeddings = 0;

  int n_routed_experts = 0;
  int num_experts_per_tok = 0;
  int n_shared_experts = 1;
  int moe_intermediate_size = 0;
  double routed_scaling_factor = 1.0;
  bool norm_topk_prob = true;
  int num_hash_layers = 0;  // V4: first layers whose experts come from tid2eid
  double swiglu_limit = 0;

  int hc_mult = 0;
  int hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  double rms_norm_eps = 0;

  EngramConfig engram;
  DraftConfig draft;

  int weight_block_size = 0;  // edge of an FP8 weight tile, length of its activation block: 32 (V4.1), 128 (V4)
  std::int32_t bos_token_id = 0;
  std::int32_t eos_token_id = 1;
  std::int32_t pad_token_id = -1;
  std::int32_t image_token_id = -1;

  bool is_v41() const { return family == ModelFamily::kV41; }
  int ratio(int layer) const { return compress_ratios[static_cast<std::size_t>(layer)]; }
  // Layer whose compressed KV this layer reads; -1 for a window-only layer. V4: the layer itself.
  int KvSourceOf(int layer) const;
  // Layer whose index selection this layer uses; -1 when it attends all visible entries or has none. V4: itself
  // if ratio is 4.
  int IndexSourceOf(int layer) const;
  bool IsKvSource(int layer) const { return KvSourceOf(layer) == layer; }
  bool IsIndexSource(int layer) const { return IndexSourceOf(layer) == layer; }
  bool HasEngram(int layer) const { return EngramIndexOf(layer) >= 0; }
  // Position of the layer in engram.layer_ids, or -1.
  int EngramIndexOf(int layer) const;

  bool operator==(const ModelConfig&) const = default;
};

// Parses and validates the text of a config.json; `file` is for messages. Flat (V4) and nested text_config
// (V4.1). Every key that matters is checked for presence, type and range, and against the others; an unknown
// architecture is refused by its name. Throws InputError naming file and key.
ModelConfig ParseConfig(std::string_view json, const std::string& file);

// Reads DIR/config.json.
ModelConfig LoadConfig(const std::string& dir);

// The config as the JSON that ParseConfig reads back to the same value (used by `lockstep synth`).
std::string ConfigToJson(const ModelConfig& config);

}  // namespace lockstep
