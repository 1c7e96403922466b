// How the fast engine runs. Nothing here may change a bit of the result; NumericsOptions, which does, is shared with the reference.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/device_spec.h"
#include "model/numerics_options.h"
#include "model/step_trace.h"

namespace lockstep::fast {

// Which experts start in device memory.
enum class Residency {
  kAuto,    // as many as the device's memory holds, the lowest ids first until usage statistics say better
  kAll,
  kNone,
  kRandom,  // each with probability one half, from `residency_seed`; for tests
};

// What may compute an expert that is not resident.
enum class CpuLane {
  kOff,   // always streamed to the device
  kAuto,  // the plan decides by estimated finish time
  kAll,   // every expert that is not resident; for tests
};

// Whether steps of decode are captured and launched as graphs.
enum class Graphs {
  kAuto,  // on devices that launch work to run later: CUDA
  kOff,
  kOn,
};

struct EngineOptions {
  kernels::DeviceSpec device;
  NumericsOptions numerics;
  std::int64_t chunk_rows = 512;          // prompt tokens that pass a layer together
  std::int64_t attention_tile_rows = 0;   // rows whose queries are in memory together; 0: 64 on the CPU, 1024 on CUDA devices, which need as many to be busy
  int page_shift = 6;                     // 2^page_shift compressed rows a page
  std::int64_t max_context = 0;           // tokens a session; 0: max_position_embeddings of the model
  std::size_t page_memory = 0;            // bytes of compressed KV and index keys, all sessions; 0: no limit but the device's, on which
                                          // experts leave room for one session of max_context
  bool exact_tail = true;                 // V4.1: layers after the last kv source only where needed
  bool zero_hit_skipping = true;          // off: experts that nobody picked are copied all the same
  Residency residency = Residency::kAuto;
  std::uint64_t residency_seed = 1;
  CpuLane cpu_lane = CpuLane::kAuto;
  int staging_slots = 3;                  // experts in flight to a device
  Graphs graphs = Graphs::kAuto;
  bool poison = false;                    // fills state memory that must not be read with NaN bytes; for tests
  StepTrace* trace = nullptr;             // not owned

  bool UsesGraphs() const {
    return graphs == Graphs::kOn || (graphs == Graphs::kAuto && device.kind == kernels::DeviceSpec::Kind::kCuda);
  }
};

}  // namespace lockstep::fast
