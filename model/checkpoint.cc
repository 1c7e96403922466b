#include "model/checkpoint.h"

#include <algorithm>

#include "model/error.h"
#include "model/json_text.h"
#include "model/tensor_binder.h"

namespace lockstep {
namespace {

constexpr std::int64_t kEngramScaleBlock = 32;

// Binds the tensors of one model in the order of its data flow.
class ModelBinder {
 public:
  ModelBinder(const ModelConfig& config, TensorBinder* tensors) : config_(config), tensors_(*tensors) {}

  ModelWeights Bind() {
    ModelWeights model;
    model.embed = tensors_.Floats("embed.weight", {config_.vocab_size, E()});
    // Grown one by one: a config may promise any number of layers, and the first missing tensor ends it.
    for (int layer = 0; layer < config_.num_layers; ++layer) model.layers.push_back(BindLayer(layer));
    if (!config_.is_v41()) model.hc_head = BindHyperConnection("hc_head", S(), 1);
    model.norm = Norm("norm", E());
    const bool renamed = !tensors_.HasLinear("head") && tensors_.HasLinear("lm_head");
    model.head = tensors_.Linear(renamed ? "lm_head" : "head", config_.vocab_size, E());
    return model;
  }

 private:
  std::int64_t E() const { return config_.hidden_size; }
  std::int64_t S() const { return config_.hc_mult; }
  std::int64_t D() const { return config_.head_dim; }
  std::int64_t I() const { return config_.index_head_dim; }

  TensorView Norm(const std::string& name, std::int64_t size) {
    return tensors_.Floats(name + ".weight", {size});
  }

  HcWeights BindHyperConnection(const std::string& name, std::int64_t rows, std::int64_t scales) {
    return {.fn = tensors_.Floats(name + "_fn", {rows, S() * E()}),
            .base = tensors_.Floats(name + "_base", {rows}),
            .scale = tensors_.Floats(name + "_scale", {scales})};
  }

  LayerWeights BindLayer(int layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const std::int64_t mixes = (2 + S()) * S();
    LayerWeights weights;
    if (config_.HasEngram(layer)) weights.engram = BindEngram(prefix + "engram.", config_.EngramIndexOf(layer));
    weights.hc_attn = BindHyperConnection(prefix + "hc_attn", mixes, 3);
    weights.attn_norm = Norm(prefix + "attn_norm", E());
    BindAttention(prefix + "attn.", &weights);
    if (config_.IsKvSource(layer)) {
      weights.compressor = BindCompressor(prefix + "attn.compressor.", config_.ratio(layer), D());
    }
    BindIndexer(prefix + "attn.indexer.", layer, &weights.indexer);
    weights.hc_ffn = BindHyperConnection(prefix + "hc_ffn", mixes, 3);
    weights.ffn_norm = Norm(prefix + "ffn_norm", E());
    BindRouter(prefix + "ffn.gate.", layer, &weights);
    for (int x = 0; x < config_.n_routed_experts; ++x) {
      weights.experts.push_back(BindExpert(prefix + "ffn.experts." + std::to_string(x) + "."));
    }
    weights.shared_expert = BindExpert(prefix + "ffn.shared_experts.");
    return weights;
  }

  void BindAttention(const std::string& prefix, LayerWeights* weights) {
    const std::int64_t rank = config_.q_lora_rank;
    weights->wq_a = tensors_.Linear(prefix + "wq_a", rank, E());
    weights->q_norm = Norm(prefix + "q_norm", rank);
    weights->wq_b = tensors_.Linear(prefix + "wq_b", config_.num_heads * D(), rank);
    weights->wkv = tensors_.Linear(prefix + "wkv", D(), E());
    weights->kv_norm = Norm(prefix + "kv_norm", D());
    weights->attn_sink = tensors_.Floats(prefix + "attn_sink", {config_.num_heads});
    weights->wo_a = BindOutputGroups(prefix + "wo_a");
    weights->wo_b = tensors_.Linear(prefix + "wo_b", E(), std::int64_t{config_.o_groups} * config_.o_lora_rank);
  }

  // One matrix a group: rows of one stored matrix, or the slices into which an EXL3 pack cuts it.
  std::vector<LinearWeight> BindOutputGroups(const std::string& name) {
    const int groups = config_.o_groups;
    const std::int64_t rows = config_.o_lora_rank;
    const std::int64_t in_features = config_.num_heads / groups * D();
    const auto slice_name = [&](int g) { return name + ".slice." + std::to_string(g); };
    std::vector<LinearWeight> slices;
    if (tensors_.HasLinear(slice_name(0))) {
      for (int g = 0; g < groups; ++g) slices.push_back(tensors_.Linear(slice_name(g), rows, in_features));
      return slices;
    }
    const LinearWeight whole = tensors_.Linear(name, groups * rows, in_features);
    if (whole.kind == LinearWeight::Kind::kExl3) {
      tensors_.Fail(whole.exl3.trellis,
                    "expected one EXL3 matrix a group, named '" + slice_name(0) + "' and so on");
    }
    for (int g = 0; g < groups; ++g) {
      LinearWeight slice = whole;
      slice.name = slice_name(g);
      slice.out_features = rows;
      slice.row_begin = g * rows;
      slices.push_back(std::move(slice));
    }
    return slices;
  }

  // A compressor of `width` output channels. V4's overlapping groups have two sets of channels, one for each of
  // the two groups that a token takes part in.
  CompressorWeights BindCompressor(const std::string& prefix, int ratio, std::int64_t width) {
    const std::int64_t channels = !config_.is_v41() && ratio == kOverlapRatio ? 2 * width : width;
    CompressorWeights weights;
    weights.wkv = tensors_.Linear(prefix + "wkv", channels, E());
    if (ratio > 1) weights.wgate = tensors_.Linear(prefix + "wgate", channels, E());
    if (!config_.is_v41()) weights.ape = tensors_.Floats(prefix + "ape", {ratio, channels});
    weights.norm = Norm(prefix + "norm", width);
    return weights;
  }

  void BindIndexer(const std::string& prefix, int layer, LayerIndexWeights* weights) {
    if (config_.IsIndexSource(layer)) {
      weights->wq_b = tensors_.Linear(prefix + "wq_b", config_.index_n_heads * I(), config_.q_lora_rank);
      weights->weights_proj = tensors_.Linear(prefix + "weights_proj", config_.index_n_heads, E());
      if (!config_.is_v41())
        weights->compressor = BindCompressor(prefix + "compressor.", config_.ratio(layer), I());
    }
    if (config_.is_v41() && config_.IsKvSource(layer)) {
      weights->wk = tensors_.Linear(prefix + "wk", I(), D());
      weights->k_norm = Norm(prefix + "k_norm", I());
    }
  }

  void BindRouter(const std::string& prefix, int layer, LayerWeights* weights) {
    const std::int64_t experts = config_.n_routed_experts;
    weights->gate_weight = tensors_.Floats(prefix + "weight", {experts, E()});
    if (layer < config_.num_hash_layers) {
      weights->tid2eid = BindTokenExperts(prefix + "tid2eid");
      return;
    }
    weights->gate_bias = tensors_.Floats(prefix + "bias", {experts});
    if (config_.is_v41() && tensors_.Has(prefix + "bias_vl")) {
      weights->gate_bias_vl = tensors_.Floats(prefix + "bias_vl", {experts});
    }
  }

  // The ids index experts, so a bad one must not get further than this.
  TensorView BindTokenExperts(const std::string& name) {
    TensorView ids = tensors_.Typed(name, DType::kI64, {config_.vocab_size, config_.num_experts_per_tok});
    const std::vector<std::int64_t> values = tensors_.Values<std::int64_t>(ids);
    const int experts = config_.n_routed_experts;
    const auto bad =
        std::find_if(values.begin(), values.end(), [&](std::int64_t id) { return id < 0 || id >= experts; });
    if (bad == values.end()) return ids;
    const std::int64_t token = (bad - values.begin()) / config_.num_experts_per_tok;
    tensors_.Fail(ids, "token " + std::to_string(token) + " has expert " + std::to_string(*bad) +
                           ", expected 0 to " + std::to_string(experts - 1));
  }

  ExpertWeights BindExpert(const std::string& prefix) {
    const std::int64_t width = config_.moe_intermediate_size;
    return {.w1 = tensors_.Linear(prefix + "w1", width, E()),
            .w2 = tensors_.Linear(prefix + "w2", E(), width),
            .w3 = tensors_.Linear(prefix + "w3", width, E())};
  }

  // The tables are hundreds of gigabytes: only their headers are looked at.
  EngramWeights BindEngram(const std::string& prefix, int index) {
    const EngramConfig& engram = config_.engram;
    const std::int64_t rows = engram.num_embeddings[static_cast<std::size_t>(index)];
    const Shape table = {rows, engram.head_dim};
    EngramWeights weights;
    if (tensors_.Has(prefix + "embed.scale")) {
      weights.table = tensors_.Typed(prefix + "embed.weight", DType::kF8E4M3, table);
      const std::int64_t scales = (engram.head_dim + kEngramScaleBlock - 1) / kEngramScaleBlock;
      weights.table_scale = tensors_.Typed(prefix + "embed.scale", DType::kF8E8M0, {rows, scales});
    } else {
      weights.table = tensors_.Floats(prefix + "embed.weight", table);
    }
    weights.wkv =
        tensors_.Linear(prefix + "wkv", (S() + 1) * E(), std::int64_t{engram.columns()} * engram.head_dim);
    weights.q_weight = tensors_.Floats(prefix + "q_weight", {S(), E()});
    weights.k_weight = tensors_.Floats(prefix + "k_weight", {S(), E()});
    return weights;
  }

  const ModelConfig& config_;
  TensorBinder& tensors_;
};

// Parts of the released files that this program knows and does not run, fillers, and tables that older programs
// stored.
bool IsIgnorable(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  for (const std::string_view prefix : {"mtp.", "vision.", "aligner.", "image_"}) {
    if (name.starts_with(prefix)) return true;
  }
  return name.find("__align_pad__") != name.npos || name.ends_with("inv_freq");
}

// Splits `unused` into what may be ignored, which is returned, and what nothing accounts for, which is an
// error.
std::vector<std::string> ExpectIgnorable(const std::vector<std::string>& unused, const std::string& dir) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> ignored, extra;
  for (const std::string& name : unused) (IsIgnorable(name) ? ignored : extra).push_back(name);
  if (extra.empty()) return ignored;
  std::string list;
  for (std::size_t i = 0; i < std::min(extra.size(), kShown); ++i) {
    list += (i > 0 ? ", '" : "'") + Printable(extra[i]) + "'";
  }
  throw InputError(dir + ": " + std::to_string(extra.size()) +
                   " tensors have no place in the model of config.json: " + list +
                   (extra.size() > kShown ? " and more" : ""));
}

double Bits(const TensorView& tensor) { return 8.0 * static_cast<double>(tensor.empty() ? 0 : tensor.bytes()); }

}  // namespace

double LinearWeight::BitsPerWeight() const {
  if (kind == Kind::kExl3) {
    const double bits = Bits(exl3.trellis) + Bits(exl3.suh) + Bits(exl3.svh) + Bits(exl3.bias);
    return bits / (static_cast<double>(out_features) * static_cast<double>(in_features));
  }
  // `weight` may hold more rows than this matrix, and `scale` is theirs too.
  const double stored_weights = static_cast<double>(weight.shape[0]) * static_cast<double>(in_features);
  return (Bits(weight) + Bits(scale)) / stored_weights;
}

Checkpoint OpenCheckpoint(const std::string& dir) {
  SafetensorsSet files = SafetensorsSet::OpenDirectory(dir);
  return BindCheckpoint(dir, LoadConfig(dir), std::move(files));
}

Checkpoint BindCheckpoint(const std::string& name, const ModelConfig& config, SafetensorsSet files) {
  Checkpoint checkpoint;
  checkpoint.dir = name;
  checkpoint.files = std::move(files);
  checkpoint.config = config;
  TensorBinder tensors(checkpoint.files, name, config.weight_block_size);
  checkpoint.weights = ModelBinder(checkpoint.config, &tensors).Bind();
  checkpoint.ignored = ExpectIgnorable(tensors.Unused(), name);
  return checkpoint;
}

}  // namespace lockstep
