// Which device holds a layer. A layer that reads another layer's compressed KV or selection stays on that layer's device.
#pragma once

#include <vector>

#include "model/config.h"

namespace lockstep::fast {

// device_of[layer], non-decreasing, for `devices` devices: layers in equal shares, cut only where no KV or selection crosses.
std::vector<int> MapLayers(const ModelConfig& config, int devices);

}  // namespace lockstep::fast
