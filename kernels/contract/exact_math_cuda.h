// The elementary functions as the current CUDA device computes them.
#pragma once

#include <cstdint>

#include "kernels/contract/exact_math_batch.h"

namespace lockstep {

// The digest (exact_math_digest.h) of f over the sampled inputs, or over all 2^32. Aborts on a CUDA error.
std::uint64_t CudaSampledDigest(Elementary f);
std::uint64_t CudaFullDigest(Elementary f);

}  // namespace lockstep
