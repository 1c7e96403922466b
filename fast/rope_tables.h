// RoPE cosines and sines on a device, made on the host in double and rounded once. docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/backend.h"
#include "model/config.h"

namespace lockstep::fast {

// One table a layer kind: rows of rope_dim floats, rope_dim/2 cosines then sines, one row a position. Grows on demand.
class RopeTables {
 public:
  RopeTables(kernels::Device& device, const ModelConfig& config, std::int64_t max_positions);

  // Makes positions [0, end) available to kernels enqueued later.
  void Ensure(std::int64_t end);
  // Table for a layer of that compression ratio.
  const float* For(int ratio) const { return ratio > 0 ? compressed_.data() : window_.data(); }

 private:
  kernels::Device& device_;
  std::vector<float> window_frequencies_, compressed_frequencies_;
  kernels::DeviceArray<float> window_, compressed_;
  std::int64_t ready_ = 0;
};

}  // namespace lockstep::fast
