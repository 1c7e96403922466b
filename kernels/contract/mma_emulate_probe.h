// mma_emulate.h as functions, by each build, for tests and benches.
#pragma once

#include <cstdint>

#include "kernels/contract/mma_format.h"
#include "model/numerics_options.h"

namespace lockstep {

// Up to four rows against 16 columns. Buffers as MmaDecoded describes them, k long.
struct MmaEmulateCall {
  Profile profile;
  int rows;  // 1 to 4; 4 go together, fewer one by one
  std::int64_t k;
  const float* values_a[4];
  const std::int32_t* exponents_a[4];
  const float* values_b;
  const std::int32_t* exponents_b;
  float* c;  // [rows][16], in and out
};

namespace mma_emulate_probe {
namespace generic {
void Accumulate(const MmaEmulateCall& call);
void DecodePanel(MmaFormat format, const std::uint16_t* bits, std::int64_t k, float* values,
                 std::int32_t* exponents);
}  // namespace generic
namespace avx2 {
void Accumulate(const MmaEmulateCall& call);
void DecodePanel(MmaFormat format, const std::uint16_t* bits, std::int64_t k, float* values,
                 std::int32_t* exponents);
}  // namespace avx2
namespace avx512 {
void Accumulate(const MmaEmulateCall& call);
void DecodePanel(MmaFormat format, const std::uint16_t* bits, std::int64_t k, float* values,
                 std::int32_t* exponents);
}  // namespace avx512
}  // namespace mma_emulate_probe
}  // namespace lockstep
