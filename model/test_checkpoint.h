// Tiny checkpoints in the official tensor names, dtypes and layouts, for tests to open as they are or after
// spoiling something.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/dtype.h"

namespace lockstep {

struct TestTensor {
  DType dtype = DType::kBF16;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;  // zeros, but 127 (1.0) in E8M0 scales and 1.0 in F16 scales

  TestTensor() = default;
  TestTensor(DType type, std::vector<std::int64_t> dimensions);
};

struct TestCheckpoint {
  nlohmann::json config;
  std::map<std::string, TestTensor> tensors;

  // Writes config.json and model.safetensors into the directory and returns it.
  const std::string& Write(const std::string& dir) const;

  void Rename(const std::string& from, const std::string& to);
  // Replaces the matrix `name` by zeros in EXL3 form, mul1, rounded up to multiples of 128.
  void MakeExl3(const std::string& name, std::int64_t out_features, std::int64_t in_features, int bits_x2);
};

// V4: 4 layers of ratios 0, 4, 8, 4, the first hash-routed; 8 experts top-2; everything BF16 or F32.
TestCheckpoint TinyV4();

// V4.1: 6 layers of ratios 0, 2, 2, 1, 1, 1; kv sources 1 and 3, index sources 1, 3 and 5; engram at layer 1;
// FP8 matrices in tiles of 32, FP4 experts, and one draft stage and a vision tensor to ignore.
TestCheckpoint TinyV41();

}  // namespace lockstep
