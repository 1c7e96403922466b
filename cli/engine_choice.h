// The one place where a command's flags become an engine.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "model/checkpoint.h"
#include "model/engine.h"
#include "model/numerics_options.h"
#include "model/step_trace.h"

namespace lockstep::cli {

// Flags shared by all commands that run a model, as typed.
struct EngineFlags {
  std::string model;
  std::string engine;  // empty: fast if it is built, else reference
  std::string device = "cpu";
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
  std::string engine;  // "reference"
  bool truth = false;
  NumericsOptions numerics;

  // "truth" or "contract:sm90".
  std::string Arithmetic() const;
};

// Throws InputError naming the flag and what it accepts.
EngineChoice ChooseEngine(const EngineFlags& flags);

// `trace` is not owned, may be null, and must outlive the engine.
std::unique_ptr<Engine> MakeEngine(std::shared_ptr<const Checkpoint> checkpoint, const EngineChoice& choice,
                                   StepTrace* trace = nullptr);

}  // namespace lockstep::cli
