// Exponents of values that came from a 16-bit format, as kernels/contract/mma_emulate.h wants them.
#pragma once

#include "kernels/contract/mma_emulate.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

// The format's smallest normal exponent; its subnormals have it too.
constexpr int kSmallestF16Exponent = -14;
constexpr int kSmallestBF16Exponent = -126;

LOCKSTEP_INLINE contract::I32x16 StoredExponents(contract::F32x16 values, int smallest) {
  using namespace contract;
  const I32x16 bits = BitsOf(values);
  const I32x16 exponent = Max((bits >> 23) & I32x16(0xff), I32x16(127 + smallest)) - I32x16(127);
  return Select(Equal(bits & I32x16(INT32_MAX), I32x16(0)), I32x16(kNoMmaExponent), exponent);
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
