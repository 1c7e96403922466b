#include "cli/placement.h"

#include <cstdio>
#include <vector>

#include "cli/engine_choice.h"
#include "fast/placement.h"
#include "kernels/device/backend.h"
#include "model/error.h"

namespace lockstep::cli {
namespace {

using fast::DevicePlacement;
using nlohmann::ordered_json;

std::size_t BytesOf(const char* flag, const std::string& text) {
  std::size_t bytes = 0;
  if (!kernels::ParseBytes(text, &bytes))
    throw InputError(std::string(flag) + ": expected a size such as 32GiB, found '" + text + "'");
  return bytes;
}

fast::EngineOptions OptionsOf(const PlacementFlags& flags, const ModelConfig& config) {
  EngineFlags engine;
  if (!flags.device.empty()) engine.device = flags.device;
  engine.profile = flags.profile;
  engine.engine = "fast";
  fast::EngineOptions options = FastOptions(ChooseEngine(engine));
  if (flags.context < 0 || flags.context > config.max_position_embeddings) {
    throw InputError("--context: expected 1 to " + std::to_string(config.max_position_embeddings) +
                     " tokens, found " + std::to_string(flags.context));
  }
  options.max_context = flags.context > 0 ? flags.context : config.max_position_embeddings;
  if (!flags.vram.empty()) options.device.memory_limit = BytesOf("--vram", flags.vram);
  const bool cuda = options.device.kind == kernels::DeviceSpec::Kind::kCuda;
  if (cuda && options.device.memory_limit == 0 && !kernels::BuiltWithCuda()) {
    throw InputError("--vram: expected the memory of " + flags.device +
                     ", because this program was built without CUDA and cannot ask for it");
  }
  return options;
}

ordered_json Describe(const DevicePlacement& device, const std::string& name) {
  const std::size_t taken =
      device.trunk + device.activations + device.staging + device.session + device.resident;
  return {{"device", name},
          {"first_layer", device.first_layer},
          {"layers", device.layers},
          {"limit", device.limit},
          {"trunk", device.trunk},
          {"activations", device.activations},
          {"staging", device.staging},
          {"session", device.session},
          {"resident_experts", device.resident_experts},
          {"resident", device.resident},
          {"free", device.limit - taken},
          {"streamed_experts", device.streamed_experts},
          {"streamed", device.streamed}};
}

std::size_t EngramBytes(const ModelWeights& weights) {
  std::size_t bytes = 0;
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.engram) continue;
    for (const TensorView* part : {&layer.engram->table, &layer.engram->table_scale})
      bytes += part->data.size();
  }
  return bytes;
}

double MiB(const ordered_json& bytes) { return bytes.get<double>() / (1 << 20); }

}  // namespace

void AddPlacementFlags(CLI::App& command, PlacementFlags* flags) {
  command.add_option("--device", flags->device,
                     "Plan for these devices, which need not exist: cpu[:N], cuda:0, cuda:0,1");
  command.add_option("--vram", flags->vram,
                     "Memory of each of them, such as 32GiB; default: what the machine has");
  command.add_option("--ram", flags->ram, "Host memory for experts that are not resident; default: no limit");
  command.add_option("--context", flags->context, "Tokens of the longest session; default: the model's");
  command.add_option("--profile", flags->profile, "Contract profile that the devices would run; default sm90");
}

ordered_json DescribePlacement(const std::shared_ptr<const Checkpoint>& checkpoint,
                               const PlacementFlags& flags) {
  const fast::EngineOptions options = OptionsOf(flags, checkpoint->config);
  const std::vector<DevicePlacement> devices = fast::PlanPlacement(checkpoint, options);
  const std::string kind = options.device.kind == kernels::DeviceSpec::Kind::kCuda ? "cuda:" : "cpu:";
  std::size_t host = 0;
  ordered_json list = ordered_json::array();
  for (std::size_t d = 0; d < devices.size(); ++d) {
    list.push_back(Describe(devices[d], kind + std::to_string(options.device.indices[d])));
    host += devices[d].streamed;
  }
  if (!flags.ram.empty() && host > BytesOf("--ram", flags.ram)) {
    throw InputError("--ram: the experts that are not resident need " + std::to_string(host) +
                     " bytes, more than " + flags.ram);
  }
  return {{"profile", NameOf(options.numerics.profile)},
          {"context", options.max_context},
          {"devices", list},
          {"host_experts", host},
          {"engram_tables", EngramBytes(checkpoint->weights)}};
}

void PrintPlacement(const ordered_json& placement) {
  std::printf("placement for contract:%s, sessions of %lld tokens, MiB:\n",
              placement["profile"].get<std::string>().c_str(), placement["context"].get<long long>());
  std::printf("%-8s %-9s %10s %10s %12s %10s %10s %19s %10s %19s\n", "device", "layers", "limit", "trunk",
              "activations", "staging", "session", "experts resident", "free", "experts streamed");
  for (const ordered_json& d : placement["devices"]) {
    const int first = d["first_layer"], layers = d["layers"];
    std::printf("%-8s %-9s %10.1f %10.1f %12.1f %10.1f %10.1f %8lld %10.1f %10.1f %8lld %10.1f\n",
                d["device"].get<std::string>().c_str(),
                (std::to_string(first) + "-" + std::to_string(first + layers - 1)).c_str(), MiB(d["limit"]),
                MiB(d["trunk"]), MiB(d["activations"]), MiB(d["staging"]), MiB(d["session"]),
                d["resident_experts"].get<long long>(), MiB(d["resident"]), MiB(d["free"]),
                d["streamed_experts"].get<long long>(), MiB(d["streamed"]));
  }
  std::printf(
      "host memory: %.1f of experts that are streamed or computed there; Engram tables stay on disk: %.1f\n",
      MiB(placement["host_experts"]), MiB(placement["engram_tables"]));
}

}  // namespace lockstep::cli
