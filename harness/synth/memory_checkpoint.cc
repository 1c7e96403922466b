#include "harness/synth/memory_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "harness/synth/inventory.h"
#include "harness/synth/matrix_plan.h"
#include "model/error.h"

namespace lockstep::synth {
namespace {

constexpr std::string_view kPrefix = "synth:";

[[noreturn]] void FailName(std::string_view model, const std::string& problem) {
  throw InputError("--model " + std::string(model) + ": " + problem +
                   "; expected synth:SHAPE[,bits=B][,codebook=C][,layers=N][,seed=S][,skew=0.5 to 0.99][,engram=ROWS]");
}

template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), *value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool ParsePart(std::string_view key, std::string_view value, SynthOptions* options) {
  if (key == "bits") return options->bits = value, true;
  if (key == "codebook") return options->codebook = value, true;
  if (key == "layers") return ParseNumber(value, &options->shape_options.layers);
  if (key == "engram") return ParseNumber(value, &options->shape_options.engram_base);
  if (key == "seed") return ParseNumber(value, &options->seed);
  if (key == "skew") return ParseNumber(value, &options->routing_skew);
  return false;
}

// Memory of the tensors that a checkpoint holds, and the tensors as their readers see them.
struct TensorMemory {
  std::vector<std::vector<std::byte>> blocks;
  std::vector<TensorView> views;
};

TensorView ViewOf(const SynthTensor& tensor, const std::string& model) {
  TensorView view;
  view.name = tensor.name;
  view.file = model;
  view.dtype = tensor.dtype;
  view.shape = tensor.shape;
  return view;
}

// Fills [i] of `blocks` for each tensor that has one, on all cores.
void FillBlocks(const std::vector<SynthTensor>& tensors, std::vector<std::vector<std::byte>>* blocks) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;
  std::vector<std::pair<std::size_t, std::int64_t>> pieces;  // tensor, offset
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<std::int64_t>((*blocks)[i].size());
    for (std::int64_t offset = 0; offset < size; offset += kPiece) pieces.emplace_back(i, offset);
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t p = next++; p < pieces.size(); p = next++) {
      const auto [i, offset] = pieces[p];
      const std::span<std::byte> block((*blocks)[i]);
      tensors[i].fill(offset, block.subspan(static_cast<std::size_t>(offset)).first(
                                  std::min(static_cast<std::size_t>(kPiece), block.size() - static_cast<std::size_t>(offset))));
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  work();
}

TensorMemory MakeTensorMemory(const std::vector<SynthTensor>& tensors, Bulk bulk, const std::string& model) {
  TensorMemory memory;
  memory.blocks.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorView view = ViewOf(tensors[i], model);
    if (bulk == Bulk::kMadeWhereUsed && tensors[i].made_where_used) {
      view.random = std::make_shared<const RandomTensor>(RandomTensor{tensors[i].key, tensors[i].unit, tensors[i].fill});
    } else {
      memory.blocks[i].resize(static_cast<std::size_t>(view.bytes()));
      view.data = memory.blocks[i];
    }
    memory.views.push_back(std::move(view));
  }
  FillBlocks(tensors, &memory.blocks);
  return memory;
}

}  // namespace

bool IsSynthName(std::string_view model) { return model.starts_with(kPrefix); }

SynthOptions ParseSynthName(std::string_view model) {
  std::string_view rest = model.substr(kPrefix.size());
  SynthOptions options;
  options.shape = ParseShape(rest.substr(0, rest.find(',')), "--model " + std::string(model));
  for (std::size_t comma = rest.find(','); comma != rest.npos; comma = rest.find(',')) {
    rest.remove_prefix(comma + 1);
    const std::string_view part = rest.substr(0, rest.find(','));
    const std::size_t equals = part.find('=');
    const bool known = equals != part.npos && ParsePart(part.substr(0, equals), part.substr(equals + 1), &options);
    if (!known) FailName(model, "cannot read '" + std::string(part) + "'");
  }
  CheckRoutingSkew(options.routing_skew, "--model " + std::string(model) + ": skew");
  return options;
}

std::string SynthName(const SynthOptions& options) {
  const SynthOptions plain;
  std::string name = std::string(kPrefix) + std::string(NameOf(options.shape));
  const auto add = [&](const char* key, const auto& value, const auto& usual, const std::string& text) {
    if (value != usual) name += std::string(",") + key + "=" + text;
  };
  char skew[32];
  std::snprintf(skew, sizeof skew, "%g", options.routing_skew);
  add("bits", options.bits, plain.bits, options.bits);
  add("codebook", options.codebook, plain.codebook, options.codebook);
  add("layers", options.shape_options.layers, plain.shape_options.layers, std::to_string(options.shape_options.layers));
  add("seed", options.seed, plain.seed, std::to_string(options.seed));
  add("skew", options.routing_skew, plain.routing_skew, skew);
  add("engram", options.shape_options.engram_base, plain.shape_options.engram_base, std::to_string(options.shape_options.engram_base));
  return name;
}

std::shared_ptr<const Checkpoint> MakeCheckpoint(const SynthOptions& options, Bulk bulk) {
  struct Owner {
    TensorMemory memory;
    Checkpoint checkpoint;
  };
  const std::string name = SynthName(options);
  const ModelConfig config = MakeConfig(options.shape, options.shape_options);
  const MatrixPlan plan(options.bits, options.codebook, config.num_layers, options.seed);
  auto owner = std::make_shared<Owner>();
  owner->memory = MakeTensorMemory(MakeSynthTensors(config, plan, options.routing_skew, options.seed), bulk, name);
  owner->checkpoint = BindCheckpoint(name, config, SafetensorsSet::OfTensors(std::move(owner->memory.views)));
  if (!config.engram.layer_ids.empty()) owner->checkpoint.engram_token_map = MakeTokenMap(config, options.seed);
  return {owner, &owner->checkpoint};
}

}  // namespace lockstep::synth
