// Random models made for one test: smaller than the golden ones, with the depth and window that the test asks
// for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"

namespace lockstep::harness {

struct SmallModel {
  ModelFamily family = ModelFamily::kV41;
  int layers = 40;
  int window = 8;
  std::int64_t max_positions = 8192;
  int hidden = 64;
  std::vector<int> engram_layers = {};
  std::uint64_t seed = 1;
};

// The published plan of layers (V4.1: two window layers, a ratio-2 half with three kv sources, a ratio-1 half
// with one and candidate blocks; V4: two window layers, then ratios 4 and 128 in turn, the first two layers
// hash-routed) with heads and ranks of 32 to 64 and four experts of which a token picks two, stored as the
// published checkpoint stores its weights.
ModelConfig SmallConfig(const SmallModel& model);

// Writes it into the directory and opens it.
std::shared_ptr<const Checkpoint> MakeSmallModel(const SmallModel& model, const std::string& dir);

}  // namespace lockstep::harness
