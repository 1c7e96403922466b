#include "harness/synth/inventory.h"

#include <cmath>
#include <string>
#include <utility>

#include "harness/synth/counter_rng.h"
#include "harness/synth/routing.h"

namespace lockstep::synth {
namespace {

// Deviations relative to 1/sqrt(in), which makes y = W x as large as x.
constexpr double kQueryGain = 1.5;  // attention that looks at some keys more than at others
constexpr double kHeadGain = 3.0;   // logits

// Root mean square of what enters the last projection of a sublayer, measured on random models.
constexpr double kAttentionRms = 0.4;
constexpr double kExpertsRms = 0.9;

class Inventory {
 public:
  Inventory(const ModelConfig& config, const MatrixPlan& plan, double routing_skew, std::uint64_t seed)
      : config_(config),
        plan_(plan),
        seed_(seed),
        sublayer_rms_(1 / std::sqrt(2.0 * config.num_layers)),
        law_(PopularityLaw(config.n_routed_experts, config.num_experts_per_tok, routing_skew)),
        bias_by_rank_(PopularityBias(config.n_routed_experts, config.num_experts_per_tok, routing_skew)),
        source_(seed, &tensors_) {}

  std::vector<SynthTensor> Make() {
    source_.Normal("embed.weight", DType::kBF16, {config_.vocab_size, E()}, 0, 1);
    for (int layer = 0; layer < config_.num_layers; ++layer) MakeLayer(layer);
    if (!config_.is_v41()) MakeHyperConnection("hc_head", S(), 1);
    MakeNorm("norm", E());
    MakeHead();
    return std::move(tensors_);
  }

 private:
  std::int64_t E() const { return config_.hidden_size; }
  std::int64_t S() const { return config_.hc_mult; }
  std::int64_t D() const { return config_.head_dim; }
  std::int64_t I() const { return config_.index_head_dim; }

  static double Deviation(double gain, std::int64_t in) { return gain / std::sqrt(static_cast<double>(in)); }

  void MakeNorm(const std::string& name, std::int64_t size) {
    source_.Normal(name + ".weight", DType::kBF16, {size}, 1, 0.1);
  }

  void MakeBf16(const std::string& name, std::int64_t out, std::int64_t in, double gain = 1) {
    source_.Normal(name + ".weight", DType::kBF16, {out, in}, 0, Deviation(gain, in));
  }

  void MakeExl3(const std::string& name, std::int64_t out, std::int64_t in, MatrixRole role, double gain) {
    source_.Exl3Matrix(name, out, in, plan_.FormOf(role, layer_, name), Deviation(gain, in));
  }

  // A matrix that the published checkpoint stores as FP8, or BF16 as the compressors are.
  void MakeFp8(const std::string& name, std::int64_t out, std::int64_t in, MatrixRole role, double gain = 1) {
    if (!plan_.native()) return MakeExl3(name, out, in, role, gain);
    const std::int64_t block = config_.weight_block_size;
    source_.Fp8(name + ".weight", name + ".scale", {out, in, block, block}, Deviation(gain, in));
  }
  void MakeDense(const std::string& name, std::int64_t out, std::int64_t in, MatrixRole role) {
    if (!plan_.native()) return MakeExl3(name, out, in, role, 1);
    MakeBf16(name, out, in);
  }

  void MakeHyperConnection(const std::string& name, std::int64_t rows, std::int64_t scales) {
    source_.Normal(name + "_fn", DType::kF32, {rows, S() * E()}, 0, Deviation(1, S() * E()));
    source_.Normal(name + "_base", DType::kF32, {rows}, 0, 0.5);
    source_.Normal(name + "_scale", DType::kF32, {scales}, 1, 0.1);
  }

  void MakeLayer(int layer) {
    layer_ = layer;
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const std::int64_t mixes = (2 + S()) * S();
    if (config_.HasEngram(layer)) MakeEngram(prefix + "engram.", config_.EngramIndexOf(layer));
    MakeHyperConnection(prefix + "hc_attn", mixes, 3);
    MakeNorm(prefix + "attn_norm", E());
    MakeAttention(prefix + "attn.");
    if (config_.IsKvSource(layer)) MakeCompressor(prefix + "attn.compressor.", config_.ratio(layer), D());
    MakeIndexer(prefix + "attn.indexer.");
    MakeHyperConnection(prefix + "hc_ffn", mixes, 3);
    MakeNorm(prefix + "ffn_norm", E());
    MakeRouter(prefix + "ffn.gate");
    for (int x = 0; x < config_.n_routed_experts; ++x) {
      MakeExpert(prefix + "ffn.experts." + std::to_string(x) + ".", MatrixRole::kRoutedExpert);
    }
    MakeExpert(prefix + "ffn.shared_experts.", MatrixRole::kSharedExpert);
    layer_ = -1;
  }

  void MakeAttention(const std::string& prefix) {
    const std::int64_t heads = config_.num_heads, rank = config_.q_lora_rank, groups = config_.o_groups;
    const std::int64_t group_in = heads / groups * D(), group_out = config_.o_lora_rank;
    MakeFp8(prefix + "wq_a", rank, E(), MatrixRole::kAttention);
    MakeNorm(prefix + "q_norm", rank);
    MakeFp8(prefix + "wq_b", heads * D(), rank, MatrixRole::kAttention, kQueryGain);
    MakeFp8(prefix + "wkv", D(), E(), MatrixRole::kAttention);
    MakeNorm(prefix + "kv_norm", D());
    source_.Normal(prefix + "attn_sink", DType::kF32, {heads}, 0, 1);
    if (plan_.native()) {
      MakeFp8(prefix + "wo_a", groups * group_out, group_in, MatrixRole::kAttention);
    } else {
      for (std::int64_t g = 0; g < groups; ++g) {
        MakeExl3(prefix + "wo_a.slice." + std::to_string(g), group_out, group_in, MatrixRole::kAttention, 1);
      }
    }
    MakeFp8(prefix + "wo_b", E(), groups * group_out, MatrixRole::kAttention, sublayer_rms_ / kAttentionRms);
  }

  // V4's ratio-4 groups overlap: each projection has two halves.
  void MakeCompressor(const std::string& prefix, int ratio, std::int64_t width) {
    const std::int64_t out = !config_.is_v41() && ratio == kOverlapRatio ? 2 * width : width;
    MakeDense(prefix + "wkv", out, E(), MatrixRole::kAttention);
    if (ratio > 1) MakeDense(prefix + "wgate", out, E(), MatrixRole::kAttention);
    if (!config_.is_v41()) source_.Normal(prefix + "ape", DType::kF32, {ratio, out}, 0, 0.5);
    MakeNorm(prefix + "norm", width);
  }

  void MakeIndexer(const std::string& prefix) {
    if (config_.IsIndexSource(layer_)) {
      MakeFp8(prefix + "wq_b", config_.index_n_heads * I(), config_.q_lora_rank, MatrixRole::kAttention);
      MakeBf16(prefix + "weights_proj", config_.index_n_heads, E());
      if (!config_.is_v41()) MakeCompressor(prefix + "compressor.", config_.ratio(layer_), I());
    }
    if (config_.is_v41() && config_.IsKvSource(layer_)) {
      MakeDense(prefix + "wk", I(), D(), MatrixRole::kIndexKey);
      MakeNorm(prefix + "k_norm", I());
    }
  }

  void MakeRouter(const std::string& name) {
    const int experts = config_.n_routed_experts;
    MakeBf16(name, experts, E());
    const std::vector<int> order = PopularityOrder(experts, seed_, name + ".order");
    if (layer_ < config_.num_hash_layers) {
      const int picks = config_.num_experts_per_tok;
      source_.Ids(name + ".tid2eid", {config_.vocab_size, picks},
                  PopularityTable(law_, order, config_.vocab_size, picks, seed_, name + ".tid2eid"));
      return;
    }
    std::vector<float> bias(bias_by_rank_.size());
    for (std::size_t r = 0; r < bias.size(); ++r) bias[static_cast<std::size_t>(order[r])] = bias_by_rank_[r];
    source_.Floats(name + ".bias", std::move(bias));
    if (config_.is_v41()) source_.Normal(name + ".bias_vl", DType::kF32, {experts}, 0, 0.1);
  }

  void MakeExpert(const std::string& prefix, MatrixRole role) {
    const std::int64_t width = config_.moe_intermediate_size;
    const auto make = [&](const char* name, std::int64_t out, std::int64_t in, double gain) {
      if (plan_.native() && role == MatrixRole::kRoutedExpert) {
        source_.Fp4Matrix(prefix + name, out, in, Deviation(gain, in));
      } else {
        MakeFp8(prefix + name, out, in, role, gain);
      }
    };
    make("w1", width, E(), 1);
    make("w3", width, E(), 1);
    make("w2", E(), width, sublayer_rms_ / kExpertsRms);
  }

  void MakeEngram(const std::string& prefix, int index) {
    constexpr std::int64_t kScaleBlock = 32;
    const EngramConfig& engram = config_.engram;
    const std::int64_t rows = engram.num_embeddings[static_cast<std::size_t>(index)];
    source_.Fp8(prefix + "embed.weight", prefix + "embed.scale", {rows, engram.head_dim, 1, kScaleBlock, true}, 1);
    MakeFp8(prefix + "wkv", (S() + 1) * E(), std::int64_t{engram.columns()} * engram.head_dim,
            MatrixRole::kEngram);
    source_.Normal(prefix + "q_weight", DType::kBF16, {S(), E()}, 1, 0.25);
    source_.Normal(prefix + "k_weight", DType::kBF16, {S(), E()}, 1, 0.25);
  }

  void MakeHead() {
    if (plan_.native()) {
      MakeBf16("head", config_.vocab_size, E(), kHeadGain);
    } else {
      MakeExl3("head", config_.vocab_size, E(), MatrixRole::kHead, kHeadGain);
    }
  }

  const ModelConfig& config_;
  const MatrixPlan& plan_;
  std::uint64_t seed_;
  double sublayer_rms_;      // of each sublayer's output: all of them together weigh as much as the embedding,
                             // whose rms is 1
  std::vector<double> law_;  // of the experts' popularity
  std::vector<float> bias_by_rank_;
  std::vector<SynthTensor> tensors_;
  TensorSource source_;
  int layer_ = -1;
};

}  // namespace

std::vector<SynthTensor> MakeSynthTensors(const ModelConfig& config, const MatrixPlan& plan, double routing_skew,
                                          std::uint64_t seed) {
  return Inventory(config, plan, routing_skew, seed).Make();
}

std::vector<TensorToWrite> MakeTensors(const ModelConfig& config, const MatrixPlan& plan, double routing_skew,
                                       std::uint64_t seed) {
  std::vector<TensorToWrite> tensors;
  for (SynthTensor& tensor : MakeSynthTensors(config, plan, routing_skew, seed)) {
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<std::int32_t> MakeTokenMap(const ModelConfig& config, std::uint64_t seed) {
  const CounterRng rng(seed, "engram_token_map");
  const auto compressed = static_cast<std::uint32_t>(config.engram.compressed_vocab_size);
  std::vector<std::int32_t> map;
  for (std::int32_t id = 0; id < config.vocab_size; ++id) {
    const bool keeps = id < config.engram.compressed_vocab_size;
    map.push_back(keeps ? id : static_cast<std::int32_t>(rng.Below(id, compressed)));
  }
  return map;
}

}  // namespace lockstep::synth
