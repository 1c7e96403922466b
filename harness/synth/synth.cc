#include "harness/synth/synth.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include "harness/synth/inventory.h"
#include "harness/synth/matrix_plan.h"
#include "model/error.h"
#include "model/text/engram_map.h"
#include "model/text/tokenizer.h"

namespace lockstep::synth {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// A directory under a temporary name that takes its own name on Commit and vanishes without it.
class PendingDirectory {
 public:
  explicit PendingDirectory(const std::string& path)
      : path_(fs::path(path).lexically_normal()), pending_(path_.string() + ".tmp" + std::to_string(getpid())) {
    if (!path_.has_filename())
      path_ = path_.parent_path(), pending_ = path_.string() + ".tmp" + std::to_string(getpid());
    std::error_code error;
    if (fs::exists(path_) && !(fs::is_directory(path_) && fs::is_empty(path_, error))) {
      throw InputError("--out: " + path_.string() + " exists and is not an empty directory");
    }
    if (!fs::create_directories(pending_, error)) {
      throw InputError("--out: cannot create " + pending_.string() + ": " + error.message());
    }
  }
  ~PendingDirectory() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(pending_, ignored);
  }
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  std::string Path(const std::string& name) const { return (pending_ / name).string(); }

  void WriteFile(const std::string& name, std::string_view bytes) const {
    std::ofstream out(Path(name), std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) throw InputError(Path(name) + ": cannot write");
  }

  void Commit() {
    std::error_code error;
    fs::rename(pending_, path_, error);
    if (error) throw InputError("--out: cannot rename to " + path_.string() + ": " + error.message());
    committed_ = true;
  }

 private:
  fs::path path_, pending_;
  bool committed_ = false;
};

std::int64_t ByteSize(const TensorToWrite& tensor) {
  std::int64_t bytes = static_cast<std::int64_t>(SizeOf(tensor.dtype));
  for (const std::int64_t d : tensor.shape) bytes *= d;
  return bytes;
}

// [begin, end) of the tensors of each shard, in order; a tensor is never split.
std::vector<std::pair<std::size_t, std::size_t>> SplitShards(const std::vector<TensorToWrite>& tensors,
                                                             std::int64_t shard_bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> shards;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t size = ByteSize(tensors[i]);
    if (shards.empty() || bytes + size > shard_bytes) {
      shards.emplace_back(i, i);
      bytes = 0;
    }
    bytes += size;
    shards.back().second = i + 1;
  }
  return shards;
}

std::string ShardName(std::size_t shard, std::size_t shards) {
  if (shards == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
  return name;
}

void WriteTensors(const PendingDirectory& dir, const std::vector<TensorToWrite>& tensors,
                  std::int64_t shard_bytes,
                  const std::function<void(std::int64_t, std::int64_t)>& on_progress) {
  std::int64_t total = 0, written = 0;
  for (const TensorToWrite& tensor : tensors) total += ByteSize(tensor);
  const auto shards = SplitShards(tensors, shard_bytes);
  ordered_json weight_map = ordered_json::object();
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const auto [begin, end] = shards[s];
    const std::string name = ShardName(s, shards.size());
    const std::span<const TensorToWrite> part(tensors.data() + begin, end - begin);
    WriteSafetensors(dir.Path(name), part);
    for (const TensorToWrite& tensor : part) {
      weight_map[tensor.name] = name;
      written += ByteSize(tensor);
    }
    on_progress(written, total);
  }
  if (shards.size() == 1) return;
  const ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  dir.WriteFile("model.safetensors.index.json", index.dump(1) + "\n");
}

// The config with the block that says how the weights are stored. Loaders go by the tensors.
std::string ConfigText(const ModelConfig& config, const MatrixPlan& plan, const SynthOptions& options) {
  ordered_json root = ordered_json::parse(ConfigToJson(config));
  const int block = config.weight_block_size;
  const ordered_json fp8{
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"scale_fmt", "ue8m0"}, {"weight_block_size", {block, block}}};
  if (plan.native()) {
    root["quantization_config"] = fp8;
  } else {
    ordered_json exl3{
        {"quant_method", "exl3"}, {"codebook", options.codebook}, {"original_quantization_config", fp8}};
    if (plan.bits_name() != "mixed") exl3["bits"] = ordered_json::parse(plan.bits_name());
    root["quantization_config"] = exl3;
  }
  return root.dump(1) + "\n";
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError("--tokenizer: cannot open " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

void CheckRoutingSkew(double skew, const std::string& name) {
  if (!(skew >= 0.5 && skew <= 0.99)) throw InputError(name + ": expected 0.5 to 0.99");
}

void WriteCheckpoint(const SynthOptions& options, const std::string& out,
                     const std::function<void(std::int64_t, std::int64_t)>& on_progress) {
  CheckRoutingSkew(options.routing_skew, "--routing-skew");
  if (options.shard_bytes < 1) throw InputError("--shard-bytes: expected at least 1");
  ModelConfig config = MakeConfig(options.shape, options.shape_options);
  const MatrixPlan plan(options.bits, options.codebook, config.num_layers, options.seed);
  PendingDirectory dir(out);
  if (!options.tokenizer.empty()) {
    const std::string text = ReadText(options.tokenizer);
    const Tokenizer tokenizer = Tokenizer::FromJson(text, options.tokenizer);
    SetVocabulary(tokenizer.vocab_size(), BuildEngramTokenMap(tokenizer).classes, &config);
    dir.WriteFile("tokenizer.json", text);
  } else if (!config.engram.layer_ids.empty()) {
    const std::vector<std::int32_t> map = MakeTokenMap(config, options.seed);
    dir.WriteFile("engram_token_map.i32",
                  {reinterpret_cast<const char*>(map.data()), map.size() * sizeof(map[0])});
  }
  dir.WriteFile("config.json", ConfigText(config, plan, options));
  WriteTensors(dir, MakeTensors(config, plan, options.routing_skew, options.seed), options.shard_bytes,
               on_progress);
  dir.Commit();
}

}  // namespace lockstep::synth
