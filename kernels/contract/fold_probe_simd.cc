// Compiled once per instruction set.
#include "kernels/contract/fold_probe.h"

#include "kernels/contract/fold.h"

namespace lockstep::fold_probe::LOCKSTEP_ISA {

float DotF32(const float* a, const float* b, std::int64_t n) {
  return contract::DotF(contract::F32Elements{a}, contract::F32Elements{b}, n);
}

float DotBF16(const std::uint16_t* a, const float* b, std::int64_t n) {
  return contract::DotF(contract::BF16Elements{a}, contract::F32Elements{b}, n);
}

float FoldInPlace(float* x, std::int64_t n) { return contract::FoldInPlace(x, n); }

}  // namespace lockstep::fold_probe::LOCKSTEP_ISA
