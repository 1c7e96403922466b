#include "reference/moe.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "model/error.h"
#include "reference/selection.h"

namespace lockstep::reference {

template <typename A>
Routing<typename A::Real> Route(const ModelConfig& config, const LayerWeights& layer, const std::vector<float>& gate_XE,
                                const std::vector<float>& bias_X, std::int32_t token, const typename A::Real* x_E, int layer_index) {
  using Real = typename A::Real;
  const std::int64_t width = config.hidden_size;
  std::vector<Real> gate_row(static_cast<std::size_t>(width));
  std::vector<Real> score, choice;
  for (int e = 0; e < config.n_routed_experts; ++e) {
    std::copy_n(gate_XE.begin() + e * width, width, gate_row.begin());
    score.push_back(std::sqrt(A::Softplus(A::Dot(x_E, gate_row.data(), width))));
    choice.push_back(bias_X.empty() ? score.back() : score.back() + bias_X[static_cast<std::size_t>(e)]);
  }
  Routing<Real> routing;
  if (layer.tid2eid.empty()) {
    const Selection chosen = SelectTop(choice, config.num_experts_per_tok, "router of layer " + std::to_string(layer_index));
    routing.experts.assign(chosen.indices.begin(), chosen.indices.end());
    routing.margin = chosen.margin;
  } else {
    for (int i = 0; i < config.num_experts_per_tok; ++i) {
      routing.experts.push_back(static_cast<std::int32_t>(layer.tid2eid.At<std::int64_t>(std::int64_t{token} * config.num_experts_per_tok + i)));
    }
  }
  std::sort(routing.experts.begin(), routing.experts.end());
  Real sum = 0;
  for (std::int32_t e : routing.experts) sum = sum + score[static_cast<std::size_t>(e)];
  if (config.is_v41()) sum = sum + static_cast<Real>(1e-20);
  const bool normalize = config.norm_topk_prob && (!config.is_v41() || config.num_experts_per_tok > 1);
  for (std::int32_t e : routing.experts) {
    const Real s = score[static_cast<std::size_t>(e)];
    routing.weights.push_back((normalize ? s / sum : s) * static_cast<Real>(config.routed_scaling_factor));
  }
  return routing;
}

namespace {

// y = w2 bf16([weight *] silu(min(w1 x, L)) * clamp(w3 x, -L, L)) for rows of one expert; `weights` null for the shared expert.
template <typename A>
Matrix<typename A::Real> ApplyExpert(double limit, const ExpertWeights& expert, LinearEngine<A>& linears,
                                     const Matrix<typename A::Real>& x_TE, const std::vector<typename A::Real>* weights) {
  using Real = typename A::Real;
  const Real bound = static_cast<Real>(limit);
  Matrix<Real> gate_TF = linears.Apply(expert.w1, x_TE);
  const Matrix<Real> up_TF = linears.Apply(expert.w3, x_TE);
  for (Eigen::Index t = 0; t < gate_TF.rows(); ++t) {
    for (Eigen::Index f = 0; f < gate_TF.cols(); ++f) {
      Real a = gate_TF(t, f), b = up_TF(t, f);
      if (bound > 0) {
        a = std::min(a, bound);
        b = std::clamp(b, -bound, bound);
      }
      Real value = A::Silu(a) * b;
      if (weights) value = (*weights)[static_cast<std::size_t>(t)] * value;
      gate_TF(t, f) = A::Bf16(value);
    }
  }
  return linears.Apply(expert.w2, gate_TF);
}

}  // namespace

template <typename A>
Matrix<typename A::Real> ApplyExperts(const ModelConfig& config, const LayerWeights& layer, LinearEngine<A>& linears,
                                      const Matrix<typename A::Real>& x_TE, const std::vector<Routing<typename A::Real>>& routing) {
  using Real = typename A::Real;
  std::map<std::int32_t, std::vector<std::pair<Eigen::Index, Real>>> rows_of;  // ascending expert id
  for (std::size_t t = 0; t < routing.size(); ++t) {
    for (std::size_t i = 0; i < routing[t].experts.size(); ++i) {
      rows_of[routing[t].experts[i]].emplace_back(static_cast<Eigen::Index>(t), routing[t].weights[i]);
    }
  }
  Matrix<Real> sum_TE = Matrix<Real>::Zero(x_TE.rows(), x_TE.cols());
  std::vector<bool> started(routing.size(), false);  // x + 0 would turn a -0 into +0
  for (const auto& [expert, rows] : rows_of) {
    Matrix<Real> in(static_cast<Eigen::Index>(rows.size()), x_TE.cols());
    std::vector<Real> weights;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      in.row(static_cast<Eigen::Index>(r)) = x_TE.row(rows[r].first);
      weights.push_back(rows[r].second);
    }
    const Matrix<Real> y = ApplyExpert(config.swiglu_limit, layer.experts[static_cast<std::size_t>(expert)], linears, in, &weights);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Eigen::Index t = rows[r].first;
      const auto row = y.row(static_cast<Eigen::Index>(r));
      if (started[static_cast<std::size_t>(t)]) {
        sum_TE.row(t) += row;
      } else {
        sum_TE.row(t) = row;
      }
      started[static_cast<std::size_t>(t)] = true;
    }
  }
  sum_TE += ApplyExpert<A>(config.swiglu_limit, layer.shared_expert, linears, x_TE, nullptr);
  return sum_TE.unaryExpr([](Real v) { return A::Bf16(v); });
}

#define LOCKSTEP_INSTANTIATE(A)                                                                                               \
  template Routing<A::Real> Route<A>(const ModelConfig&, const LayerWeights&, const std::vector<float>&, const std::vector<float>&, \
                                     std::int32_t, const A::Real*, int);                                                      \
  template Matrix<A::Real> ApplyExperts<A>(const ModelConfig&, const LayerWeights&, LinearEngine<A>&, const Matrix<A::Real>&,  \
                                           const std::vector<Routing<A::Real>>&);
LOCKSTEP_INSTANTIATE(Truth)
LOCKSTEP_INSTANTIATE(Contract)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::reference
