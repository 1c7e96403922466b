#include "model/config.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/config_reader.h"
#include "model/error.h"
#include "model/json_text.h"
#include "model/safetensors.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Bounds far above any real model, so that products of two sizes fit in an int64 and most in an int.
constexpr int kMaxSize = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxLayers = 4096;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 1 << 16;
constexpr int kMaxExperts = 1 << 16;
constexpr int kMaxStreams = 64;
constexpr int kMaxDraftStages = 16;
constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 31) - 1;

constexpr char kV4Architecture[] = "DeepseekV4ForCausalLM";
constexpr char kV41Architecture[] = "DeepseekV41ForCausalLM";

int Size(const ConfigReader& in, std::string_view key, int high = kMaxSize) {
  return static_cast<int>(in.Int(key, 1, high));
}

bool StrictlyAscending(const std::vector<int>& ids) {
  return std::adjacent_find(ids.begin(), ids.end(), [](int a, int b) { return a >= b; }) == ids.end();
}

// Greatest of the ascending `sources` that is <= layer, or -1.
int LastSourceUpTo(const std::vector<int>& sources, int layer) {
  const auto it = std::upper_bound(sources.begin(), sources.end(), layer);
  return it == sources.begin() ? -1 : *(it - 1);
}

// The first of `architectures`, or what a config without them says by its model_type.
std::string ReadArchitecture(const ConfigReader& root, const json& object) {
  const auto list = object.find("architectures");
  if (list != object.end() && !list->is_null()) {
    if (!list->is_array() || list->empty() || !(*list)[0].is_string()) {
      root.Fail("architectures", "a list with one architecture name");
    }
    return (*list)[0].get<std::string>();
  }
  std::string type = root.String("model_type");
  if (type == "deepseek_v4") return kV4Architecture;
  if (type == "deepseek_v41" || type == "deepseek_v41_text") return kV41Architecture;
  return type;
}

ModelFamily FamilyOf(const ConfigReader& root, const std::string& architecture, const std::string& file) {
  const bool is_v4 = architecture == kV4Architecture;
  if (!is_v4 && architecture != kV41Architecture) {
    throw InputError(file + ": architecture '" + Printable(architecture) +
                     "' is not supported; supported are " + kV4Architecture + " and " + kV41Architecture);
  }
  if (root.Has("model_type")) {
    const std::string type = root.String("model_type");
    const bool agrees = is_v4 ? type == "deepseek_v4" : type == "deepseek_v41" || type == "deepseek_v41_text";
    if (!agrees) root.Fail("model_type", "the type of " + architecture);
  }
  return is_v4 ? ModelFamily::kV4 : ModelFamily::kV41;
}

// Choices that the architecture allows in principle and no released model makes.
void ExpectSupportedChoices(const ConfigReader& in) {
  in.ExpectOnly("num_key_value_heads", 1);
  in.ExpectOnly("attention_bias", false);
  in.ExpectOnly("tie_word_embeddings", false);
  in.ExpectOnly("hidden_act", "silu");
  in.ExpectOnly("scoring_func", "sqrtsoftplus");
  in.ExpectOnly("topk_method", "noaux_tc");
  in.ExpectOnly("gate_temp", 1);
  in.ExpectOnly("n_shared_experts", 1);
}

void ReadAttention(const ConfigReader& in, ModelConfig* config) {
  config->vocab_size = Size(in, "vocab_size", kMaxVocab);
  config->hidden_size = Size(in, "hidden_size");
  config->num_layers = Size(in, "num_hidden_layers", kMaxLayers);
  config->num_heads = Size(in, "num_attention_heads", kMaxHeads);
  config->head_dim = Size(in, "head_dim", kMaxHeadDim);
  config->rope_head_dim = Size(in, "qk_rope_head_dim", config->head_dim);
  if (config->rope_head_dim % 2 != 0) in.Fail("qk_rope_head_dim", "an even number");
  config->q_lora_rank = Size(in, "q_lora_rank");
  config->o_groups = Size(in, "o_groups", kMaxHeads);
  if (config->num_heads % config->o_groups != 0) {
    in.Fail("o_groups", "a divisor of num_attention_heads (" + std::to_string(config->num_heads) + ")");
  }
  config->o_lora_rank = Size(in, "o_lora_rank");
  config->sliding_window = Size(in, "sliding_window");
}

void CheckRatio(const ConfigReader& in, const ModelConfig& config, int ratio) {
  if (config.is_v41()) {
    if (ratio > 2) in.Fail("compress_ratios", "ratios 0, 1 or 2");
  } else if (ratio != 0 && ratio < kOverlapRatio) {
    in.Fail("compress_ratios", "ratios 0, 4 (overlapping groups, indexed) or more than 4");
  }
}

// The list has one entry a layer, and then none or one a draft stage; those are 0.
void ReadCompressRatios(const ConfigReader& in, ModelConfig* config) {
  std::vector<int> ratios = in.Ints("compress_ratios", 0, kMaxSize);
  const auto layers = static_cast<std::size_t>(config->num_layers);
  const auto nextn = static_cast<std::size_t>(in.IntOr("num_nextn_predict_layers", 0, 0, kMaxDraftStages));
  const std::size_t extra = ratios.size() < layers ? 0 : ratios.size() - layers;
  // A V4 release ships three stages and still says 1, so its list decides.
  const bool extra_fits = extra <= kMaxDraftStages && (extra == 0 || extra == nextn || !config->is_v41());
  if (ratios.size() < layers || !extra_fits) {
    in.Fail("compress_ratios", "num_hidden_layers (" + std::to_string(layers) +
                                   ") entries, or those and num_nextn_predict_layers (" +
                                   std::to_string(nextn) + ") more");
  }
  for (std::size_t i = layers; i < ratios.size(); ++i) {
    if (ratios[i] != 0) in.Fail("compress_ratios", "0 for every draft stage");
  }
  ratios.resize(layers);
  for (const int ratio : ratios) CheckRatio(in, *config, ratio);
  config->compress_ratios = std::move(ratios);
  config->draft.stages = static_cast<int>(extra > 0 ? extra : nextn);
}

std::vector<int> ReadSourceLayers(const ConfigReader& in, const char* key, const ModelConfig& config) {
  std::vector<int> ids = in.Ints(key, 0, config.num_layers - 1);
  if (!StrictlyAscending(ids)) in.Fail(key, "layer ids in ascending order");
  for (const int id : ids) {
    if (config.ratio(id) == 0) in.Fail(key, "layers whose compress_ratios entry is not 0");
  }
  return ids;
}

// V4.1: which layer's compressed KV and which layer's selection every layer reads.
void ReadSources(const ConfigReader& in, ModelConfig* config) {
  config->kv_source_layer_ids = ReadSourceLayers(in, "kv_source_layer_ids", *config);
  config->index_source_layer_ids = ReadSourceLayers(in, "index_source_layer_ids", *config);
  for (int layer = 0; layer < config->num_layers; ++layer) {
    if (config->ratio(layer) == 0) continue;
    const std::string which = "a source for layer " + std::to_string(layer) + " with compress ratio " +
                              std::to_string(config->ratio(layer));
    const int kv = config->KvSourceOf(layer);
    if (kv < 0 || config->ratio(kv) != config->ratio(layer)) in.Fail("kv_source_layer_ids", which);
    const int index = config->IndexSourceOf(layer);
    if (index < kv)
      in.Fail("index_source_layer_ids", which + " at or after its kv source " + std::to_string(kv));
  }
}

void ReadCandidates(const ConfigReader& in, ModelConfig* config) {
  const std::string_view key = "candidate_source_layer_id";
  const int source = static_cast<int>(in.IntOr(key, -1, -kMaxLayers, config->num_layers - 1));
  if (source < 0) return;
  const std::vector<int>& indexers = config->index_source_layer_ids;
  if (!std::binary_search(indexers.begin(), indexers.end(), source)) {
    in.Fail(key, "one of index_source_layer_ids, or -1");
  }
  // A later indexer is limited to the candidate's blocks, so both must count the same entries.
  if (config->KvSourceOf(indexers.back()) != config->KvSourceOf(source)) {
    in.Fail(key, "an index source that reads the last kv source");
  }
  config->candidate_source_layer_id = source;
  config->candidate_topk_blocks = Size(in, "candidate_topk_blocks");
  config->candidate_block_size = Size(in, "candidate_block_size");
}

void ReadIndexer(const ConfigReader& in, ModelConfig* config) {
  config->index_n_heads = Size(in, "index_n_heads", kMaxHeads);
  config->index_head_dim = Size(in, "index_head_dim", kMaxHeadDim);
  if (config->index_head_dim < config->rope_head_dim) {
    in.Fail("index_head_dim", "at least qk_rope_head_dim (" + std::to_string(config->rope_head_dim) + ")");
  }
  // V4 rotates index queries and keys by a Walsh-Hadamard matrix of this size.
  if (!config->is_v41() && !std::has_single_bit(static_cast<unsigned>(config->index_head_dim))) {
    in.Fail("index_head_dim", "a power of two");
  }
  config->index_topk = Size(in, "index_topk");
}

// The object with the YaRN keys: rope_scaling, or rope_parameters.compress as Hugging Face saves it; nullopt
// for none.
std::optional<ConfigReader> FindRopeScaling(const ConfigReader& in) {
  if (in.Has("rope_scaling")) return in.Object("rope_scaling");
  if (in.Has("rope_parameters")) return in.Object("rope_parameters").Object("compress");
  return std::nullopt;
}

void ReadYarn(const ConfigReader& scaling, YarnConfig* yarn) {
  const char* type_key = scaling.Has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.String(type_key);
  if (type == "default") return;
  if (type != "yarn") scaling.Fail(type_key, "\"yarn\" or \"default\"");
  yarn->factor = scaling.Number("factor", 1, 1e6);
  yarn->beta_fast = scaling.Number("beta_fast", 1e-6, 1e6);
  yarn->beta_slow = scaling.Number("beta_slow", 1e-6, yarn->beta_fast);
  yarn->original_max_position_embeddings = scaling.Int("original_max_position_embeddings", 1, kMaxTokens);
}

double ReadTheta(const ConfigReader& in, const char* key, const char* part) {
  constexpr double kLow = 1 + 1e-6, kHigh = 1e12;
  if (in.Has(key) || !in.Has("rope_parameters")) return in.Number(key, kLow, kHigh);
  return in.Object("rope_parameters").Object(part).Number("rope_theta", kLow, kHigh);
}

void ReadRope(const ConfigReader& in, ModelConfig* config) {
  config->rope_theta = ReadTheta(in, "rope_theta", "main");
  config->compress_rope_theta = ReadTheta(in, "compress_rope_theta", "compress");
  config->max_position_embeddings = in.Int("max_position_embeddings", 1, kMaxTokens);
  const std::optional<ConfigReader> scaling = FindRopeScaling(in);
  if (scaling) ReadYarn(*scaling, &config->yarn);
}

void ReadExperts(const ConfigReader& in, ModelConfig* config) {
  config->n_routed_experts = Size(in, "n_routed_experts", kMaxExperts);
  config->num_experts_per_tok = Size(in, "num_experts_per_tok", config->n_routed_experts);
  config->n_shared_experts = 1;
  config->moe_intermediate_size = Size(in, "moe_intermediate_size");
  config->routed_scaling_factor = in.Number("routed_scaling_factor", 1e-6, 1e6);
  config->norm_topk_prob = in.Bool("norm_topk_prob");
  if (config->is_v41()) {
    in.ExpectOnly("num_hash_layers", 0);
  } else {
    config->num_hash_layers = static_cast<int>(in.Int("num_hash_layers", 0, config->num_layers));
  }
  config->swiglu_limit = in.Number("swiglu_limit", 1e-6, 1e30);
}

void ReadHyperConnections(const ConfigReader& in, ModelConfig* config) {
  config->hc_mult = Size(in, "hc_mult", kMaxStreams);
  config->hc_sinkhorn_iters = Size(in, "hc_sinkhorn_iters", 1000);
  config->hc_eps = in.Number("hc_eps", 1e-37, 1);
  config->rms_norm_eps = in.Number("rms_norm_eps", 1e-37, 1);
}

void ReadEngram(const ConfigReader& in, const ModelConfig& config, EngramConfig* engram) {
  if (!config.is_v41()) {
    in.ExpectOnly("engram_layer_ids", json::array());
    return;
  }
  if (!in.Has("engram_layer_ids")) return;
  engram->layer_ids = in.Ints("engram_layer_ids", 0, config.num_layers - 1);
  if (engram->layer_ids.empty()) return;
  if (!StrictlyAscending(engram->layer_ids)) in.Fail("engram_layer_ids", "layer ids in ascending order");
  engram->num_embeddings = in.Int64s("engram_num_embeddings", 1, std::int64_t{1} << 40);
  if (engram->num_embeddings.size() != engram->layer_ids.size()) {
    in.Fail("engram_num_embeddings", "one number a layer of engram_layer_ids");
  }
  engram->max_ngram_size = static_cast<int>(in.Int("engram_max_ngram_size", 2, 16));
  engram->n_heads = Size(in, "engram_n_heads", 256);
  engram->head_dim = Size(in, "engram_head_dim", kMaxHeadDim);
  engram->vocab_size = in.Int("engram_vocab_size", 1, std::int64_t{1} << 40);
  engram->compressed_vocab_size = Size(in, "engram_compressed_vocab_size", config.vocab_size);
  const char* pad_key = in.Has("engram_pad_id") ? "engram_pad_id" : "engram_pad_token_id";
  engram->pad_id = static_cast<std::int32_t>(in.Int(pad_key, 0, engram->compressed_vocab_size - 1));
}

// DSpark's own keys; a checkpoint without them has plain next-token stages or none. Whether the ids fit the
// model is for the drafter to check: configs saved by other programs carry the released defaults along.
void ReadDraft(const ConfigReader& in, const ModelConfig& config, DraftConfig* draft) {
  draft->n_routed_experts = config.n_routed_experts;
  draft->num_experts_per_tok = config.num_experts_per_tok;
  if (draft->stages == 0 || !in.Has("dspark_block_size")) return;
  draft->block_size = Size(in, "dspark_block_size", 64);
  draft->noise_token_id = static_cast<std::int32_t>(in.Int("dspark_noise_token_id", 0, kMaxVocab));
  draft->markov_rank = Size(in, "dspark_markov_rank");
  draft->target_layer_ids = in.Ints("dspark_target_layer_ids", 0, kMaxLayers);
  if (!StrictlyAscending(draft->target_layer_ids))
    in.Fail("dspark_target_layer_ids", "layer ids in ascending order");
  draft->n_routed_experts =
      static_cast<int>(in.IntOr("dspark_n_routed_experts", config.n_routed_experts, 1, kMaxExperts));
  draft->num_experts_per_tok = static_cast<int>(
      in.IntOr("dspark_num_experts_per_tok", config.num_experts_per_tok, 1, draft->n_routed_experts));
}

int ReadBlockSize(const ConfigReader& quantization, int fallback) {
  if (!quantization.Has("weight_block_size")) return fallback;
  const std::vector<int> block = quantization.Ints("weight_block_size", 1, kMaxHeadDim);
  if (block.size() != 2 || block[0] != block[1]) quantization.Fail("weight_block_size", "two equal sizes");
  return block[0];
}

int ReadWeightBlockSize(const ConfigReader& in, ModelFamily family) {
  const int fallback = family == ModelFamily::kV41 ? 32 : 128;
  if (!in.Has("quantization_config")) return fallback;
  const ConfigReader quantization = in.Object("quantization_config");
  const std::string method = quantization.String("quant_method");
  if (method == "fp8") return ReadBlockSize(quantization, fallback);
  if (method != "exl3") quantization.Fail("quant_method", "\"fp8\" or \"exl3\"");
  // A pack keeps the block of the checkpoint it was made from, for the matrices left as they were.
  if (!quantization.Has("original_quantization_config")) return ReadBlockSize(quantization, fallback);
  return ReadBlockSize(quantization.Object("original_quantization_config"), fallback);
}

// Special ids stand at the root, in some files inside text_config.
void ReadTokenIds(const ConfigReader& root, const ConfigReader& text, ModelConfig* config) {
  const auto read = [&](const char* key, std::int32_t fallback, int high) {
    const ConfigReader& in = root.Has(key) ? root : text;
    return static_cast<std::int32_t>(in.IntOr(key, fallback, -1, high));
  };
  config->bos_token_id = read("bos_token_id", config->bos_token_id, config->vocab_size - 1);
  config->eos_token_id = read("eos_token_id", config->eos_token_id, config->vocab_size - 1);
  config->pad_token_id = read("pad_token_id", config->pad_token_id, config->vocab_size - 1);
  config->image_token_id = read("image_token_id", config->image_token_id, kMaxVocab);
}

void ReadModel(const ConfigReader& in, ModelConfig* config) {
  ExpectSupportedChoices(in);
  ReadAttention(in, config);
  ReadCompressRatios(in, config);
  if (config->is_v41()) {
    ReadSources(in, config);
    ReadCandidates(in, config);
  }
  ReadIndexer(in, config);
  ReadRope(in, config);
  ReadExperts(in, config);
  ReadHyperConnections(in, config);
  ReadEngram(in, *config, &config->engram);
  ReadDraft(in, *config, &config->draft);
}

}  // namespace

int ModelConfig::KvSourceOf(int layer) const {
  if (ratio(layer) == 0) return -1;
  return is_v41() ? LastSourceUpTo(kv_source_layer_ids, layer) : layer;
}

int ModelConfig::IndexSourceOf(int layer) const {
  if (ratio(layer) == 0) return -1;
  if (is_v41()) return LastSourceUpTo(index_source_layer_ids, layer);
  return ratio(layer) == kOverlapRatio ? layer : -1;
}

int ModelConfig::EngramIndexOf(int layer) const {
  const auto it = std::find(engram.layer_ids.begin(), engram.layer_ids.end(), layer);
  return it == engram.layer_ids.end() ? -1 : static_cast<int>(it - engram.layer_ids.begin());
}

ModelConfig ParseConfig(std::string_view text, const std::string& file) {
  const json object = ParseJson(text, file);
  if (!object.is_object()) throw InputError(file + ": expected a JSON object");
  const ConfigReader root(object, file, "");
  ModelConfig config;
  config.architecture = ReadArchitecture(root, object);
  config.family = FamilyOf(root, config.architecture, file);
  const bool nested = config.is_v41() && root.Has("text_config");
  const ConfigReader in = nested ? root.Object("text_config") : root;
  if (nested) in.ExpectOnly("model_type", "deepseek_v41_text");
  ReadModel(in, &config);
  ReadTokenIds(root, in, &config);
  config.weight_block_size = ReadWeightBlockSize(root.Has("quantization_config") ? root : in, config.family);
  return config;
}

ModelConfig LoadConfig(const std::string& dir) {
  const MappedFile file(dir + "/config.json");
  return ParseConfig({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, file.path());
}

namespace {

void WriteShape(const ModelConfig& config, json* out) {
  std::vector<int> ratios = config.compress_ratios;
  ratios.resize(ratios.size() + static_cast<std::size_t>(config.draft.stages), 0);
  out->update(json{
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_layers},
      {"num_attention_heads", config.num_heads},
      {"num_key_value_heads", 1},
      {"head_dim", config.head_dim},
      {"qk_rope_head_dim", config.rope_head_dim},
      {"q_lora_rank", config.q_lora_rank},
      {"o_groups", config.o_groups},
      {"o_lora_rank", config.o_lora_rank},
      {"sliding_window", config.sliding_window},
      {"compress_ratios", ratios},
      {"index_n_heads", config.index_n_heads},
      {"index_head_dim", config.index_head_dim},
      {"index_topk", config.index_topk},
      {"n_routed_experts", config.n_routed_experts},
      {"num_experts_per_tok", config.num_experts_per_tok},
      {"n_shared_experts", config.n_shared_experts},
      {"moe_intermediate_size", config.moe_intermediate_size},
      {"scoring_func", "sqrtsoftplus"},
      {"topk_method", "noaux_tc"},
      {"norm_topk_prob", config.norm_topk_prob},
      {"routed_scaling_factor", config.routed_scaling_factor},
      {"swiglu_limit", config.swiglu_limit},
      {"hc_mult", config.hc_mult},
      {"hc_sinkhorn_iters", config.hc_sinkhorn_iters},
      {"hc_eps", config.hc_eps},
      {"rms_norm_eps", config.rms_norm_eps},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"tie_word_embeddings", false},
  });
}

void WriteRope(const ModelConfig& config, json* out) {
  (*out)["rope_theta"] = config.rope_theta;
  (*out)["compress_rope_theta"] = config.compress_rope_theta;
  (*out)["max_position_embeddings"] = config.max_position_embeddings;
  const YarnConfig& yarn = config.yarn;
  if (yarn == YarnConfig{}) return;
  (*out)["rope_scaling"] = {{config.is_v41() ? "rope_type" : "type", "yarn"},
                            {"factor", yarn.factor},
                            {"beta_fast", yarn.beta_fast},
                            {"beta_slow", yarn.beta_slow},
                            {"original_max_position_embeddings", yarn.original_max_position_embeddings}};
}

void WriteDraft(const DraftConfig& draft, json* out) {
  (*out)["num_nextn_predict_layers"] = draft.stages;
  if (draft.block_size == 0) return;
  out->update(json{
      {"dspark_block_size", draft.block_size},
      {"dspark_noise_token_id", draft.noise_token_id},
      {"dspark_markov_rank", draft.markov_rank},
      {"dspark_target_layer_ids", draft.target_layer_ids},
      {"dspark_n_routed_experts", draft.n_routed_experts},
      {"dspark_num_experts_per_tok", draft.num_experts_per_tok},
  });
}

void WriteV41(const ModelConfig& config, json* out) {
  out->update(json{
      {"kv_source_layer_ids", config.kv_source_layer_ids},
      {"index_source_layer_ids", config.index_source_layer_ids},
      {"candidate_source_layer_id", config.candidate_source_layer_id},
      {"candidate_topk_blocks", config.candidate_topk_blocks},
      {"candidate_block_size", config.candidate_block_size},
  });
  const EngramConfig& engram = config.engram;
  if (engram.layer_ids.empty()) return;
  out->update(json{
      {"engram_layer_ids", engram.layer_ids},
      {"engram_num_embeddings", engram.num_embeddings},
      {"engram_max_ngram_size", engram.max_ngram_size},
      {"engram_n_heads", engram.n_heads},
      {"engram_head_dim", engram.head_dim},
      {"engram_vocab_size", engram.vocab_size},
      {"engram_pad_token_id", engram.pad_id},
      {"engram_compressed_vocab_size", engram.compressed_vocab_size},
  });
}

void WriteRoot(const ModelConfig& config, json* root) {
  (*root)["architectures"] = {config.architecture};
  (*root)["model_type"] = config.is_v41() ? "deepseek_v41" : "deepseek_v4";
  (*root)["torch_dtype"] = "bfloat16";
  (*root)["bos_token_id"] = config.bos_token_id;
  (*root)["eos_token_id"] = config.eos_token_id;
  if (config.pad_token_id >= 0) (*root)["pad_token_id"] = config.pad_token_id;
  if (config.image_token_id >= 0) (*root)["image_token_id"] = config.image_token_id;
  const int block = config.weight_block_size;
  if (block == (config.is_v41() ? 32 : 128)) return;
  (*root)["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {block, block}}};
}

}  // namespace

std::string ConfigToJson(const ModelConfig& config) {
  json root = json::object();
  WriteRoot(config, &root);
  json text = json::object();
  WriteShape(config, &text);
  WriteRope(config, &text);
  WriteDraft(config.draft, &text);
  if (config.is_v41()) {
    WriteV41(config, &text);
    text["model_type"] = "deepseek_v41_text";
    root["text_config"] = std::move(text);
  } else {
    text["num_hash_layers"] = config.num_hash_layers;
    root.update(text);
  }
  return root.dump(1) + "\n";
}

}  // namespace lockstep
