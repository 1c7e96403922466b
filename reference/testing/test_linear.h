// Linears made in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace lockstep::reference {

// A LinearWeight and the bytes it views.
class TestLinear {
 public:
  // Values [out, in] that `dtype` (BF16, F16 or F32) holds exactly, or whose rounding to it is meant.
  static TestLinear Dense(DType dtype, std::int64_t out, std::int64_t in, std::span<const float> values);
  // Codes [out, in] and scale exponents (E8M0 bytes) [ceil(out/block), ceil(in/block)].
  static TestLinear Fp8(int block, std::int64_t out, std::int64_t in, std::span<const std::uint8_t> codes,
                        std::span<const std::uint8_t> scales);
  // E2M1 codes [out, in], unpacked, and scale exponents [out, in/32].
  static TestLinear Fp4(std::int64_t out, std::int64_t in, std::span<const std::uint8_t> codes,
                        std::span<const std::uint8_t> scales);
  struct Exl3 {
    Codebook codebook = Codebook::kMul1;
    int bits_x2 = 6;
    std::int64_t out = 0, in = 0;      // unpadded
    std::vector<std::uint32_t> words;  // the whole trellis
    std::vector<float> suh, svh;       // padded
    std::vector<float> bias;           // padded, or empty
  };
  static TestLinear FromExl3(const Exl3& parts);

  const LinearWeight& weight() const { return *weight_; }
  LinearWeight& weight() { return *weight_; }

 private:
  TensorView Store(DType dtype, std::vector<std::int64_t> shape, std::vector<std::byte> bytes);

  std::unique_ptr<LinearWeight> weight_ = std::make_unique<LinearWeight>();
  std::vector<std::vector<std::byte>> storage_;
};

}  // namespace lockstep::reference
