// The best of a row of scores in the contract's total order: larger first, equal values by smaller index.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// Writes the numbers of the best min(k, n) of scores[n] ascending to out, where score i has number numbers[i] (ascending) or, if `numbers`
// is null, i. `keys` is scratch of n. Returns how many, or -1 if a score is NaN.
std::int32_t SelectBest(const float* scores, const std::int32_t* numbers, std::int64_t n, std::int64_t k, std::uint64_t* keys, std::int32_t* out);

}  // namespace lockstep::kernels
