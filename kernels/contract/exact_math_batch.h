// The elementary functions over arrays, by each build: what the digest tool, the tests and the bench run.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "kernels/contract/cpu_isa.h"

namespace lockstep {

enum class Elementary { kExp, kSigmoid, kSilu, kSoftplus, kSqrtSoftplus, kRsqrt };

struct ElementaryInfo {
  Elementary id;
  std::string_view name;  // also the key in golden/digests/exact_math.json
  double (*libm)(double);
  float lowest, highest;  // the error against libm is taken here: no result that is 0 or infinite by definition
};

extern const std::array<ElementaryInfo, 6> kElementaryFunctions;

// out[i] = f(in[i]) for i < n, n a multiple of 16, by the vector code of a build that this machine supports.
void ElementaryBatch(Isa isa, Elementary f, const float* in, float* out, std::size_t n);

// The same by the scalar functions, as that build compiles them.
void ElementaryScalar(Isa isa, Elementary f, const float* in, float* out, std::size_t n);

}  // namespace lockstep
