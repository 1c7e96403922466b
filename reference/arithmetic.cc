#include "reference/arithmetic.h"

#include "reference/loops.h"

namespace lockstep::reference {

LOCKSTEP_CLONES
float DotF(const float* a, const float* b, std::int64_t n) {
  constexpr std::int64_t kLanes = 128;
  float lane[kLanes] = {};
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t k = 0; k < whole; k += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lane[l] = std::fma(a[k + l], b[k + l], lane[l]);
  }
  for (std::int64_t k = whole; k < n; ++k) lane[k - whole] = std::fma(a[k], b[k], lane[k - whole]);
  return Fold(lane, kLanes);
}

}  // namespace lockstep::reference
