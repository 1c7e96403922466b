// What each build of sampling_simd.cc exports.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

#define LOCKSTEP_DECLARE_SHARES(isa)                                                                        \
  namespace isa {                                                                                           \
  void SamplingShares(const float* logits, std::int64_t n, float best, float temperature, float* shares_V); \
  }
// shares[v] = Exp((logit - best) / temperature).
LOCKSTEP_DECLARE_SHARES(generic)
LOCKSTEP_DECLARE_SHARES(avx2)
LOCKSTEP_DECLARE_SHARES(avx512)
#undef LOCKSTEP_DECLARE_SHARES

}  // namespace lockstep::kernels
