// Functions of limits_simd.cc, once per instruction set.
#pragma once

#include <cstdint>

#define LOCKSTEP_DECLARE_LIMITS(isa)                                        \
  namespace lockstep::kernels::isa {                                        \
  /* The sum of x[n], n a multiple of 128. */                               \
  float ReadAll(const float* x, std::int64_t n);                            \
  /* 160 multiply-adds a round that depend on those of the round before. */ \
  float MultiplyAdd(std::int64_t rounds);                                   \
  }
LOCKSTEP_DECLARE_LIMITS(generic)
LOCKSTEP_DECLARE_LIMITS(avx2)
LOCKSTEP_DECLARE_LIMITS(avx512)
#undef LOCKSTEP_DECLARE_LIMITS
