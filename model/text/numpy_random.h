// The one random stream of NumPy that published constants depend on:
// Generator(PCG64(SeedSequence(seed))).integers.
#pragma once

#include <cstdint>

namespace lockstep {

class NumpyPcg64 {
 public:
  explicit NumpyPcg64(std::uint64_t seed);

  std::uint64_t Next();
  // Uniform in [0, bound), by Lemire's method as Generator.integers(0, bound) draws it; bound above 2^32
  // (below, NumPy draws from 32-bit halves).
  std::uint64_t Below(std::uint64_t bound);

 private:
  __extension__ using Uint128 = unsigned __int128;
  void Step();

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

}  // namespace lockstep
