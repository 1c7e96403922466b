// The committed models on which sequences are cut in every way, and token ids for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace lockstep::reference {

struct ModelFiles {
  std::string name;  // in the names of tests
  std::string dir;
};

// golden/oracles/DIR and golden/models/DIR.
ModelFiles Oracle(const std::string& name, const std::string& dir);
ModelFiles Golden(const std::string& name, const std::string& dir);

// Those of both families that are checked at every split: oracle checkpoints, and all golden models.
const std::vector<ModelFiles>& OracleModels();
const std::vector<ModelFiles>& GoldenModels();

// Seeded ids of the vocabulary. One in four repeats an earlier one, so that n-grams recur.
std::vector<std::int32_t> DrawIds(const ModelConfig& config, std::int64_t tokens);

}  // namespace lockstep::reference
