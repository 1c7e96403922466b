// Router, experts and their combination. docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <vector>

#include "model/checkpoint.h"
#include "reference/linear.h"

namespace lockstep::reference {

// One token's experts, ascending by id.
template <typename Real>
struct Routing {
  std::vector<std::int32_t> experts;
  std::vector<Real> weights;
  double margin = 0;  // last score taken minus the best one left out; 0 on hash layers
};

template <typename A>
Routing<typename A::Real> Route(const ModelConfig& config, const LayerWeights& layer, const std::vector<float>& gate_XE,
                                const std::vector<float>& bias_X, std::int32_t token, const typename A::Real* x_E, int layer_index);

// out[T, E] = bf16(sum of the chosen experts ascending, then the shared expert).
template <typename A>
Matrix<typename A::Real> ApplyExperts(const ModelConfig& config, const LayerWeights& layer, LinearEngine<A>& linears,
                                      const Matrix<typename A::Real>& x_TE, const std::vector<Routing<typename A::Real>>& routing);

}  // namespace lockstep::reference
