// The ways to run one model that must all give the same bits, and which of them a check tries.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fast/options.h"
#include "kernels/device/device_spec.h"
#include "model/config.h"
#include "model/numerics_options.h"

namespace lockstep::harness {

// Prompt rows whose logits are asked for: with fewer of them, the exact tail leaves out more.
enum class Wanted { kAll, kSome, kOne };

// Where experts are in the course of a run.
enum class Placement { kAll, kNone, kRandom, kChanging };

struct Configuration {
  // Selects the bits.
  NumericsOptions numerics;

  // Must not change a bit.
  kernels::DeviceSpec device;
  std::int64_t chunk_rows = 0;
  std::int64_t attention_tile_rows = 0;
  int page_shift = 0;
  bool exact_tail = true;
  Placement placement = Placement::kAll;
  bool zero_hit_skipping = true;
  fast::CpuLane cpu_lane = fast::CpuLane::kAuto;
  int staging_slots = 0;
  bool graphs = false;  // decode steps are captured and launched again
  Wanted wanted = Wanted::kAll;
  int companions = 0;    // other sequences in every step
  bool cancels = false;  // steps are cancelled at any layer boundary, after the same or other tokens
  bool forks = false;    // the session is forked inside the prompt; all copies go on
  std::uint64_t seed = 0;
  bool poison = true;  // never off in a check

  // "sm90 quant chunk=16 tile=64 ..." on one line.
  std::string Name() const;
  fast::EngineOptions Options() const;
};

// A decode of the arithmetic alone: "sm90 fake-quant=official act-quant=auto".
std::string NameOf(const NumericsOptions& numerics);

enum class MatrixSize {
  kQuick,  // every value of every setting, and the extremes: about a dozen
  kFull,   // every pair of values of any two settings
};

// `device`: the one to use throughout, or null to vary threads, instruction sets and the number of pretend CPU
// devices.
std::vector<Configuration> MakeMatrix(MatrixSize size, const std::vector<NumericsOptions>& arithmetics,
                                      const kernels::DeviceSpec* device);

// sm90 and fma with the official quantizers, and fma without; kFull: sm90 without, the other profiles, and the
// activation quantizers.
std::vector<NumericsOptions> MatrixArithmetics(MatrixSize size);

}  // namespace lockstep::harness
