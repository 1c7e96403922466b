#include "fast/layer_map.h"

namespace lockstep::fast {
namespace {

// Whether every layer from `layer` on reads only what layers from `layer` on publish.
bool CanCutBefore(const ModelConfig& config, int layer) {
  for (int l = layer; l < config.num_layers; ++l) {
    const int kv = config.KvSourceOf(l), index = config.IndexSourceOf(l);
    if ((kv >= 0 && kv < layer) || (index >= 0 && index < layer)) return false;
    if (config.candidate_source_layer_id >= 0 && config.candidate_source_layer_id < layer && l > config.candidate_source_layer_id &&
        config.IsIndexSource(l)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<int> MapLayers(const ModelConfig& config, int devices) {
  std::vector<int> device_of;
  int device = 0;
  for (int l = 0; l < config.num_layers; ++l) {
    const bool due = l * devices >= (device + 1) * config.num_layers;
    if (due && device + 1 < devices && CanCutBefore(config, l)) ++device;
    device_of.push_back(device);
  }
  return device_of;
}

}  // namespace lockstep::fast
