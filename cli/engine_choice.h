// The one place where a command's flags become an engine.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "fast/options.h"
#include "kernels/device/device_spec.h"
#include "model/checkpoint.h"
#include "model/engine.h"
#include "model/numerics_options.h"
#include "model/step_trace.h"

namespace lockstep::cli {

// Flags shared by all commands that run a model, as typed.
struct EngineFlags {
  std::string model;
  std::string engine;  // empty: fast, but reference for what only it can do
  std::string device = "cpu";
  std::int64_t chunk = 0;  // prompt tokens that pass a layer together; 0: the engine's default
  bool no_exact_tail = false;
  std::string graphs = "auto";
  std::string profile;
  std::string arithmetic;
  std::string fake_quant = "official";
  std::string act_quant = "auto";
  bool stale_index_keys = false;
};

// Declares the flags on a command. `flags` must outlive the parse.
void AddEngineFlags(CLI::App& command, EngineFlags* flags);

// What the flags select.
struct EngineChoice {
  std::string engine;  // "fast" or "reference"
  bool truth = false;
  NumericsOptions numerics;
  kernels::DeviceSpec device;   // fast
  std::int64_t chunk_rows = 0;  // fast; 0: its default
  bool exact_tail = true;       // fast
  fast::Graphs graphs = fast::Graphs::kAuto;  // fast

  // "truth" or "contract:sm90".
  std::string Arithmetic() const;
};

// Throws InputError naming the flag and what it accepts.
EngineChoice ChooseEngine(const EngineFlags& flags);

// The fast engine's options that a choice of it stands for.
fast::EngineOptions FastOptions(const EngineChoice& choice);

// `trace` is not owned, may be null, and must outlive the engine. The fast engine reports no steps: to dump
// them takes longer than to run.
std::unique_ptr<Engine> MakeEngine(std::shared_ptr<const Checkpoint> checkpoint, const EngineChoice& choice,
                                   StepTrace* trace = nullptr);

}  // namespace lockstep::cli
