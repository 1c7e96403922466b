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
  int layers = 40;
  int window = 8;
  std::int64_t max_positions = 8192;
  int hidden = 64;
  std::vector<int> engram_layers = {};
  std::uint64_t seed = 1;
};

// V4.1's plan of layers (two window layers, a ratio-2 half with three kv sources, a ratio-1 half with one and
// candidate blocks) with heads and ranks of 32 to 64, four experts of which a token picks two, no Engram,
// stored as the published checkpoint stores its weights.
ModelConfig SmallV41Config(const SmallModel& model);

// Writes it into the directory and opens it.
std::shared_ptr<const Checkpoint> MakeSmallV41(const SmallModel& model, const std::string& dir);

}  // namespace lockstep::harness
