// Where an engine would put a checkpoint, without loading it: the engine's own construction on devices that
// only count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fast/options.h"
#include "model/checkpoint.h"

namespace lockstep::fast {

// Bytes of one device unless it says otherwise.
struct DevicePlacement {
  int first_layer = 0, layers = 0;
  std::size_t limit = 0;
  std::size_t trunk = 0;        // everything but routed experts
  std::size_t staging = 0;      // slots that streamed experts pass through
  std::size_t activations = 0;  // workspace and RoPE tables
  std::size_t session = 0;      // KV state of one sequence of the engine's longest context, or the page memory
  std::size_t resident = 0;     // routed experts that stay
  std::size_t streamed = 0;     // routed experts of its layers that lie in host memory
  std::int64_t resident_experts = 0, streamed_experts = 0;
};

// Devices need not exist: `options.device.memory_limit` is what each has; 0 stands for the machine's memory,
// which is right for CPU devices only. Throws InputError as the engine does when something other than experts
// does not fit.
std::vector<DevicePlacement> PlanPlacement(std::shared_ptr<const Checkpoint> checkpoint,
                                           const EngineOptions& options);

}  // namespace lockstep::fast
