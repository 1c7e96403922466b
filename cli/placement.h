// What `lockstep inspect` says about memory: where an engine would put the model on given devices.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/checkpoint.h"

namespace lockstep::cli {

struct PlacementFlags {
  std::string device, vram, ram;
  std::int64_t context = 0;  // tokens of the longest session; 0: the model's
  std::string profile;

  // Whether a plan was asked for.
  bool any() const {
    return !(device.empty() && vram.empty() && ram.empty() && profile.empty()) || context != 0;
  }
};

void AddPlacementFlags(CLI::App& command, PlacementFlags* flags);

// Throws InputError naming the flag, or what does not fit.
nlohmann::ordered_json DescribePlacement(const std::shared_ptr<const Checkpoint>& checkpoint,
                                         const PlacementFlags& flags);

void PrintPlacement(const nlohmann::ordered_json& placement);

}  // namespace lockstep::cli
