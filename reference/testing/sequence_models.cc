#include "reference/testing/sequence_models.h"

#include "reference/testing/oracle_files.h"
#include "reference/testing/test_inputs.h"

namespace lockstep::reference {

ModelFiles Oracle(const std::string& name, const std::string& dir) { return {name, OraclePath(dir)}; }
ModelFiles Golden(const std::string& name, const std::string& dir) {
  return {name, OraclePath("../models/" + dir)};
}

const std::vector<ModelFiles>& OracleModels() {
  static const std::vector<ModelFiles> models = {Oracle("HfV41", "hf-v4-1"), Oracle("HfV4b", "hf-v4-b"),
                                                 Oracle("NumpyV41n2", "numpy-v41-2"),
                                                 Oracle("NumpyV41n3", "numpy-v41-3")};
  return models;
}

const std::vector<ModelFiles>& GoldenModels() {
  static const std::vector<ModelFiles> models = {
      Golden("TinyV4Native", "tiny-v4-native"), Golden("TinyV4Mul1", "tiny-v4-mul1"),
      Golden("TinyV4Mixed", "tiny-v4-mixed"),   Golden("TinyV41Native", "tiny-v41-native"),
      Golden("TinyV41Mul1", "tiny-v41-mul1"),   Golden("TinyV41Mixed", "tiny-v41-mixed")};
  return models;
}

std::vector<std::int32_t> DrawIds(const ModelConfig& config, std::int64_t tokens) {
  Random random(61);
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const bool repeats = t > 8 && random.Integer(0, 3) == 0;
    ids.push_back(repeats ? ids[ids.size() - 7]
                          : static_cast<std::int32_t>(random.Integer(0, config.vocab_size - 1)));
  }
  return ids;
}

}  // namespace lockstep::reference
