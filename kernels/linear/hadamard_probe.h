// The 128-point butterfly of hadamard.h as a function on arrays, for the test and the benchmark.
#pragma once

#include <cstdint>

#define LOCKSTEP_DECLARE_HADAMARD(isa)             \
  namespace lockstep::kernels::isa {               \
  /* In place on blocks of 128 values. */          \
  void Hadamard128(float* x, std::int64_t blocks); \
  }
LOCKSTEP_DECLARE_HADAMARD(generic)
LOCKSTEP_DECLARE_HADAMARD(avx2)
LOCKSTEP_DECLARE_HADAMARD(avx512)
#undef LOCKSTEP_DECLARE_HADAMARD
