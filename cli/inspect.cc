// lockstep inspect: what a checkpoint holds, without running it.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cli/model_source.h"
#include "cli/placement.h"
#include "model/checkpoint.h"

namespace lockstep::cli {
namespace {

using nlohmann::ordered_json;

// Matrices of one role stored in one form.
struct Group {
  std::int64_t matrices = 0;
  std::int64_t weights = 0;
  double bytes = 0;

  void Add(const LinearWeight& linear) {
    ++matrices;
    const std::int64_t n = linear.out_features * linear.in_features;
    weights += n;
    bytes += linear.BitsPerWeight() * static_cast<double>(n) / 8;
  }
  double BitsPerWeight() const { return bytes * 8 / static_cast<double>(weights); }
};

std::string BitsText(double bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", bits);
  return text;
}

// "exl3 mul1 3", "fp8 32x32", "fp4 rows of 32", "BF16".
std::string FormOf(const LinearWeight& linear) {
  switch (linear.kind) {
    case LinearWeight::Kind::kExl3:
      return "exl3 " + std::string(NameOf(linear.exl3.codebook)) + " " + BitsText(linear.exl3.bits());
    case LinearWeight::Kind::kFp8Block:
      return "fp8 " + std::to_string(linear.block) + "x" + std::to_string(linear.block);
    case LinearWeight::Kind::kFp4Row:
      return "fp4 rows of " + std::to_string(linear.block);
    case LinearWeight::Kind::kDense:
      return std::string(NameOf(linear.weight.dtype));
  }
  return "?";
}

using Inventory = std::map<std::pair<std::string, std::string>, Group>;  // by role and form

void AddLinear(const std::string& role, const LinearWeight& linear, Inventory* inventory) {
  (*inventory)[{role, FormOf(linear)}].Add(linear);
}

void AddExpert(const std::string& role, const ExpertWeights& expert, Inventory* inventory) {
  for (const LinearWeight* linear : {&expert.w1, &expert.w2, &expert.w3}) AddLinear(role, *linear, inventory);
}

void AddCompressor(const std::optional<CompressorWeights>& compressor, Inventory* inventory) {
  if (!compressor) return;
  AddLinear("compressor", compressor->wkv, inventory);
  if (compressor->wgate) AddLinear("compressor", *compressor->wgate, inventory);
}

void AddLayer(const LayerWeights& layer, Inventory* inventory) {
  for (const LinearWeight* linear : {&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_b}) {
    AddLinear("attention", *linear, inventory);
  }
  for (const LinearWeight& group : layer.wo_a) AddLinear("attention", group, inventory);
  AddCompressor(layer.compressor, inventory);
  AddCompressor(layer.indexer.compressor, inventory);
  for (const auto* linear : {&layer.indexer.wq_b, &layer.indexer.weights_proj, &layer.indexer.wk}) {
    if (*linear) AddLinear("indexer", **linear, inventory);
  }
  for (const ExpertWeights& expert : layer.experts) AddExpert("routed experts", expert, inventory);
  AddExpert("shared expert", layer.shared_expert, inventory);
  if (layer.engram) AddLinear("engram", layer.engram->wkv, inventory);
}

Inventory Collect(const ModelWeights& model) {
  Inventory inventory;
  for (const LayerWeights& layer : model.layers) AddLayer(layer, &inventory);
  AddLinear("head", model.head, &inventory);
  return inventory;
}

ordered_json DescribeGroups(const Inventory& inventory) {
  ordered_json groups = ordered_json::array();
  for (const auto& [key, group] : inventory) {
    groups.push_back({{"role", key.first},
                      {"form", key.second},
                      {"matrices", group.matrices},
                      {"weights", group.weights},
                      {"bytes", static_cast<std::int64_t>(group.bytes)},
                      {"bits_per_weight", group.BitsPerWeight()}});
  }
  return groups;
}

ordered_json DescribeLayer(const ModelConfig& config, const LayerWeights& weights, int layer) {
  std::set<std::string> forms;
  for (const ExpertWeights& expert : weights.experts) {
    for (const LinearWeight* linear : {&expert.w1, &expert.w2, &expert.w3}) forms.insert(FormOf(*linear));
  }
  return {{"layer", layer},
          {"ratio", config.ratio(layer)},
          {"kv_source", config.KvSourceOf(layer)},
          {"index_source", config.IndexSourceOf(layer)},
          {"engram", config.HasEngram(layer)},
          {"hash_routing", !weights.tid2eid.empty()},
          {"expert_forms", forms}};
}

ordered_json DescribeLayers(const Checkpoint& checkpoint) {
  ordered_json layers = ordered_json::array();
  for (int l = 0; l < checkpoint.config.num_layers; ++l) {
    layers.push_back(
        DescribeLayer(checkpoint.config, checkpoint.weights.layers[static_cast<std::size_t>(l)], l));
  }
  return layers;
}

ordered_json DescribeDTypes(const SafetensorsSet& files) {
  std::map<std::string_view, std::pair<std::int64_t, std::int64_t>> by_dtype;  // tensors, bytes
  for (const auto& [name, tensor] : files.tensors()) {
    auto& [tensors, bytes] = by_dtype[NameOf(tensor.dtype)];
    ++tensors;
    bytes += tensor.bytes();
  }
  ordered_json dtypes = ordered_json::object();
  for (const auto& [dtype, counts] : by_dtype) {
    dtypes[std::string(dtype)] = {{"tensors", counts.first}, {"bytes", counts.second}};
  }
  return dtypes;
}

// Tensors that the engine knows and does not run, by the first part of their names.
ordered_json DescribeUnbound(const Checkpoint& checkpoint) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> by_group;  // tensors, bytes
  for (const std::string& name : checkpoint.ignored) {
    auto& [tensors, bytes] = by_group[name.substr(0, name.find('.'))];
    ++tensors;
    bytes += static_cast<std::int64_t>(checkpoint.files.tensors().at(name).data.size());
  }
  ordered_json groups = ordered_json::array();
  for (const auto& [group, counts] : by_group) {
    groups.push_back({{"group", group},
                      {"role", group == "mtp" ? "draft" : "none"},
                      {"tensors", counts.first},
                      {"bytes", counts.second}});
  }
  return groups;
}

ordered_json Describe(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config;
  return {{"model", checkpoint.dir},
          {"architecture", config.architecture},
          {"layers", config.num_layers},
          {"hidden_size", config.hidden_size},
          {"vocab_size", config.vocab_size},
          {"routed_experts", config.n_routed_experts},
          {"experts_per_token", config.num_experts_per_tok},
          {"max_position_embeddings", config.max_position_embeddings},
          {"tensors", checkpoint.files.tensors().size()},
          {"ignored_tensors", checkpoint.ignored.size()},
          {"unbound", DescribeUnbound(checkpoint)},
          {"bytes", checkpoint.files.total_bytes()},
          {"dtypes", DescribeDTypes(checkpoint.files)},
          {"matrices", DescribeGroups(Collect(checkpoint.weights))},
          {"layer_plan", DescribeLayers(checkpoint)}};
}

double MiB(const ordered_json& bytes) { return bytes.get<double>() / (1 << 20); }

void PrintLayer(const ordered_json& layer) {
  std::printf("layer %3d  ratio %-3d", layer["layer"].get<int>(), layer["ratio"].get<int>());
  if (layer["kv_source"] >= 0) std::printf("  kv of %d", layer["kv_source"].get<int>());
  if (layer["index_source"] >= 0) std::printf("  index of %d", layer["index_source"].get<int>());
  if (layer["engram"]) std::printf("  engram");
  if (layer["hash_routing"]) std::printf("  hash routing");
  std::printf("  experts:");
  for (const auto& form : layer["expert_forms"]) std::printf(" [%s]", form.get<std::string>().c_str());
  std::printf("\n");
}

void Print(const ordered_json& d) {
  std::printf("%s: %s, %d layers, hidden %d, vocabulary %d, %d experts (%d a token)\n",
              d["model"].get<std::string>().c_str(), d["architecture"].get<std::string>().c_str(),
              d["layers"].get<int>(), d["hidden_size"].get<int>(), d["vocab_size"].get<int>(),
              d["routed_experts"].get<int>(), d["experts_per_token"].get<int>());
  std::printf("%lld tensors, %.1f MiB; %lld of them not used\n", d["tensors"].get<long long>(), MiB(d["bytes"]),
              d["ignored_tensors"].get<long long>());
  for (const auto& group : d["unbound"]) {
    std::printf("  %s.*: %lld tensors, %.1f MiB, %s\n", group["group"].get<std::string>().c_str(),
                group["tensors"].get<long long>(), MiB(group["bytes"]),
                group["role"] == "draft" ? "the draft model, unbound" : "unbound");
  }
  for (const auto& [name, dtype] : d["dtypes"].items()) {
    std::printf("  %-8s %7lld tensors %12.1f MiB\n", name.c_str(), dtype["tensors"].get<long long>(),
                MiB(dtype["bytes"]));
  }
  std::printf("%-16s %-16s %9s %16s %12s %8s\n", "matrices of", "form", "count", "weights", "MiB", "bits");
  for (const auto& group : d["matrices"]) {
    std::printf("%-16s %-16s %9lld %16lld %12.1f %8.3f\n", group["role"].get<std::string>().c_str(),
                group["form"].get<std::string>().c_str(), group["matrices"].get<long long>(),
                group["weights"].get<long long>(), MiB(group["bytes"]), group["bits_per_weight"].get<double>());
  }
  for (const auto& layer : d["layer_plan"]) PrintLayer(layer);
  if (d.contains("placement")) PrintPlacement(d["placement"]);
}

struct InspectFlags {
  std::string model;
  PlacementFlags placement;
  bool json = false;
};

void RunInspect(const InspectFlags& flags) {
  const auto checkpoint = OpenModel(flags.model, /*only_fast=*/true);
  ordered_json description = Describe(*checkpoint);
  if (flags.placement.any()) description["placement"] = DescribePlacement(checkpoint, flags.placement);
  if (flags.json) {
    std::cout << description.dump(1) << "\n";
  } else {
    Print(description);
  }
}

}  // namespace

void AddInspect(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Shapes, dtypes, bits per weight and sizes of a checkpoint, and where devices would hold it");
  command->add_option("--model", flags->model, "Directory with config.json and safetensors")->required();
  AddPlacementFlags(*command, &flags->placement);
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { RunInspect(*flags); });
}

}  // namespace lockstep::cli
