#include "model/test_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "model/safetensors.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Shape = std::vector<std::int64_t>;

// Both models: hidden 128, 4 heads of 64, query rank 64, 2 output groups of rank 32, 2 index heads of 32, 8
// experts of width 64, 4 streams (24 mixes of 512 inputs), vocabulary 256.
json SharedConfig() {
  return json::parse(R"({
    "vocab_size": 256, "hidden_size": 128, "num_attention_heads": 4, "head_dim": 64, "qk_rope_head_dim": 32,
    "q_lora_rank": 64, "o_groups": 2, "o_lora_rank": 32, "sliding_window": 8, "index_n_heads": 2, "index_head_dim": 32,
    "index_topk": 4, "rope_theta": 10000, "compress_rope_theta": 160000, "max_position_embeddings": 4096,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": true,
    "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6})");
}

class Builder {
 public:
  std::map<std::string, TestTensor> tensors;

  void Add(const std::string& name, DType dtype, Shape shape) {
    tensors[name] = TestTensor(dtype, std::move(shape));
  }
  void BF16(const std::string& name, Shape shape) { Add(name, DType::kBF16, std::move(shape)); }
  void F32(const std::string& name, Shape shape) { Add(name, DType::kF32, std::move(shape)); }
  void Fp8(const std::string& name, std::int64_t out, std::int64_t in) {
    Add(name + ".weight", DType::kF8E4M3, {out, in});
    Add(name + ".scale", DType::kF8E8M0, {out / 32, in / 32});
  }
  void Fp4(const std::string& name, std::int64_t out, std::int64_t in) {
    Add(name + ".weight", DType::kI8, {out, in / 2});
    Add(name + ".scale", DType::kF8E8M0, {out, in / 32});
  }
  // BF16 in the V4 model, the published FP8 or FP4 in the V4.1 model.
  void Matrix(const std::string& name, std::int64_t out, std::int64_t in) {
    if (quantized) {
      Fp8(name, out, in);
    } else {
      BF16(name + ".weight", {out, in});
    }
  }
  void Expert(const std::string& name, std::int64_t out, std::int64_t in) {
    if (quantized) {
      Fp4(name, out, in);
    } else {
      BF16(name + ".weight", {out, in});
    }
  }

  void Block(const std::string& layer) {
    for (const char* site : {"attn", "ffn"}) {
      BF16(layer + site + "_norm.weight", {128});
      F32(layer + "hc_" + site + "_fn", {24, 512});
      F32(layer + "hc_" + site + "_base", {24});
      F32(layer + "hc_" + site + "_scale", {3});
    }
    F32(layer + "attn.attn_sink", {4});
    Matrix(layer + "attn.wq_a", 64, 128);
    BF16(layer + "attn.q_norm.weight", {64});
    Matrix(layer + "attn.wq_b", 256, 64);
    Matrix(layer + "attn.wkv", 64, 128);
    BF16(layer + "attn.kv_norm.weight", {64});
    Matrix(layer + "attn.wo_a", 64, 128);
    Matrix(layer + "attn.wo_b", 128, 64);
    BF16(layer + "ffn.gate.weight", {8, 128});
    for (int x = 0; x < 8; ++x) {
      const std::string expert = layer + "ffn.experts." + std::to_string(x);
      Expert(expert + ".w1", 64, 128);
      Expert(expert + ".w2", 128, 64);
      Expert(expert + ".w3", 64, 128);
    }
    Matrix(layer + "ffn.shared_experts.w1", 64, 128);
    Matrix(layer + "ffn.shared_experts.w2", 128, 64);
    Matrix(layer + "ffn.shared_experts.w3", 64, 128);
  }

  void Top() {
    BF16("embed.weight", {256, 128});
    BF16("norm.weight", {128});
    BF16("head.weight", {256, 128});
  }

  bool quantized = false;
};

void AddV4Compressor(const std::string& prefix, std::int64_t ratio, std::int64_t channels, std::int64_t width,
                     Builder* out) {
  out->F32(prefix + "ape", {ratio, channels});
  out->BF16(prefix + "wkv.weight", {channels, 128});
  out->BF16(prefix + "wgate.weight", {channels, 128});
  out->BF16(prefix + "norm.weight", {width});
}

void AddV41Sources(Builder* out) {
  for (const char* layer : {"layers.1.", "layers.3."}) {
    const std::string attn = std::string(layer) + "attn.";
    out->BF16(attn + "compressor.wkv.weight", {64, 128});
    out->BF16(attn + "compressor.norm.weight", {64});
    out->BF16(attn + "indexer.wk.weight", {32, 64});
    out->BF16(attn + "indexer.k_norm.weight", {32});
  }
  out->BF16("layers.1.attn.compressor.wgate.weight", {64, 128});
  for (const char* layer : {"layers.1.", "layers.3.", "layers.5."}) {
    out->Fp8(std::string(layer) + "attn.indexer.wq_b", 64, 64);
    out->BF16(std::string(layer) + "attn.indexer.weights_proj.weight", {2, 128});
  }
}

void AddEngram(const std::string& prefix, Builder* out) {
  out->Add(prefix + "embed.weight", DType::kF8E4M3, {700, 32});
  out->Add(prefix + "embed.scale", DType::kF8E8M0, {700, 1});
  out->Fp8(prefix + "wkv", 640, 192);
  out->BF16(prefix + "q_weight", {4, 128});
  out->BF16(prefix + "k_weight", {4, 128});
}

}  // namespace

TestTensor::TestTensor(DType type, std::vector<std::int64_t> dimensions)
    : dtype(type), shape(std::move(dimensions)) {
  std::size_t size = SizeOf(dtype);
  for (const std::int64_t d : shape) size *= static_cast<std::size_t>(d);
  bytes.assign(size, dtype == DType::kF8E8M0 ? 127 : 0);
  if (dtype != DType::kF16) return;
  for (std::size_t i = 1; i < size; i += 2) bytes[i] = 0x3c;
}

const std::string& TestCheckpoint::Write(const std::string& dir) const {
  std::ofstream(dir + "/config.json") << config.dump(1);
  std::vector<TensorToWrite> out;
  for (const auto& [name, tensor] : tensors) {
    const auto fill = [&bytes = tensor.bytes](std::int64_t offset, std::span<std::byte> chunk) {
      std::memcpy(chunk.data(), bytes.data() + offset, chunk.size());
    };
    out.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .fill = fill});
  }
  WriteSafetensors(dir + "/model.safetensors", out);
  return dir;
}

void TestCheckpoint::Rename(const std::string& from, const std::string& to) {
  auto node = tensors.extract(from);
  node.key() = to;
  tensors.insert(std::move(node));
}

void TestCheckpoint::MakeExl3(const std::string& name, std::int64_t out_features, std::int64_t in_features,
                              int bits_x2) {
  for (const char* part : {".weight", ".scale"}) tensors.erase(name + part);
  const std::int64_t in = (in_features + 127) / 128 * 128, out = (out_features + 127) / 128 * 128;
  tensors[name + ".trellis"] = TestTensor(DType::kI16, {in / 16, out / 16, 8 * bits_x2});
  tensors[name + ".suh"] = TestTensor(DType::kF16, {in});
  tensors[name + ".svh"] = TestTensor(DType::kF16, {out});
  tensors[name + ".mul1"] = TestTensor(DType::kI32, {});
}

TestCheckpoint TinyV4() {
  TestCheckpoint checkpoint{.config = SharedConfig(), .tensors = {}};
  checkpoint.config.update(json{{"architectures", {"DeepseekV4ForCausalLM"}},
                                {"model_type", "deepseek_v4"},
                                {"num_hidden_layers", 4},
                                {"compress_ratios", {0, 4, 8, 4}},
                                {"num_hash_layers", 1},
                                {"rms_norm_eps", 1e-6}});
  Builder out;
  out.Top();
  out.F32("hc_head_fn", {4, 512});
  out.F32("hc_head_base", {4});
  out.F32("hc_head_scale", {1});
  for (int layer = 0; layer < 4; ++layer) out.Block("layers." + std::to_string(layer) + ".");
  out.Add("layers.0.ffn.gate.tid2eid", DType::kI64, {256, 2});
  for (const char* layer : {"layers.1.", "layers.2.", "layers.3."})
    out.F32(std::string(layer) + "ffn.gate.bias", {8});
  AddV4Compressor("layers.2.attn.compressor.", 8, 64, 64, &out);
  for (const char* layer : {"layers.1.", "layers.3."}) {
    const std::string attn = std::string(layer) + "attn.";
    AddV4Compressor(attn + "compressor.", 4, 128, 64, &out);
    AddV4Compressor(attn + "indexer.compressor.", 4, 64, 32, &out);
    out.BF16(attn + "indexer.wq_b.weight", {64, 64});
    out.BF16(attn + "indexer.weights_proj.weight", {2, 128});
  }
  checkpoint.tensors = std::move(out.tensors);
  return checkpoint;
}

TestCheckpoint TinyV41() {
  json text = SharedConfig();
  text.update(json{{"num_hidden_layers", 6},
                   {"compress_ratios", {0, 2, 2, 1, 1, 1, 0}},
                   {"num_nextn_predict_layers", 1},
                   {"kv_source_layer_ids", {1, 3}},
                   {"index_source_layer_ids", {1, 3, 5}},
                   {"candidate_source_layer_id", 3},
                   {"candidate_topk_blocks", 4},
                   {"candidate_block_size", 2},
                   {"engram_layer_ids", {1}},
                   {"engram_num_embeddings", {700}},
                   {"engram_max_ngram_size", 4},
                   {"engram_n_heads", 2},
                   {"engram_head_dim", 32},
                   {"engram_vocab_size", 64},
                   {"engram_pad_token_id", 8},
                   {"engram_compressed_vocab_size", 200},
                   {"rms_norm_eps", 1e-20}});
  TestCheckpoint checkpoint;
  checkpoint.config = {
      {"architectures", {"DeepseekV41ForCausalLM"}}, {"model_type", "deepseek_v41"}, {"text_config", text}};
  Builder out;
  out.quantized = true;
  out.Top();
  for (int layer = 0; layer < 6; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    out.Block(prefix);
    out.F32(prefix + "ffn.gate.bias", {8});
    out.F32(prefix + "ffn.gate.bias_vl", {8});
  }
  AddV41Sources(&out);
  AddEngram("layers.1.engram.", &out);
  out.Block("mtp.0.");
  out.BF16("vision.patch_embed.weight", {3, 3});
  checkpoint.tensors = std::move(out.tensors);
  return checkpoint;
}

}  // namespace lockstep
