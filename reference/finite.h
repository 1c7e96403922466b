// Numbers that are not finite end here, in an error that says where. docs/numerics.md section 2: operands are finite.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tensor_view.h"

namespace lockstep::reference {

// All elements of a small tensor, widened. Throws InputError naming file and tensor if one is not finite.
std::vector<float> ReadParameters(const TensorView& tensor);

[[noreturn]] void ThrowNotFinite(std::string_view step, int layer, std::int64_t position);

// Throws InputError naming step, layer and position if one of values[n] is not finite.
template <typename Real>
void RequireFinite(std::string_view step, int layer, std::int64_t position, const Real* values, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(values[i])) ThrowNotFinite(step, layer, position);
  }
}

}  // namespace lockstep::reference
