// Facts about an elementary function over many inputs: digest, error against libm, agreement of its builds.
#pragma once

#include <cstdint>

#include "kernels/contract/exact_math_batch.h"

namespace lockstep {

struct Survey {
  std::uint64_t digest = 0;             // exact_math_digest.h
  double max_ulp = 0.0;                 // largest |result - libm| in units in the last place of the libm result
  float worst = 0.0f;                   // an input with that error
  std::uint64_t scalar_mismatches = 0;  // inputs for which the scalar and the vector function differ in a bit

  Survey& operator+=(const Survey& other);
};

// Input bit patterns first, first+1, ... (count of them, a multiple of 4096), or the sampled inputs with these
// numbers.
Survey SurveyPatterns(const ElementaryInfo& f, Isa isa, std::uint64_t first, std::uint64_t count);
Survey SurveySamples(const ElementaryInfo& f, Isa isa, std::uint64_t first, std::uint64_t count);

// How many neighbouring floats x < y in [lowest, highest] have f(x) > f(y). Both ends have the same sign.
std::uint64_t CountDecreases(const ElementaryInfo& f, Isa isa, float lowest, float highest);

}  // namespace lockstep
