#include "reference/ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/finite.h"

namespace lockstep::reference {

template <typename A>
void RmsNorm(const typename A::Real* x, const std::vector<float>& weight, double eps, typename A::Real* y) {
  using Real = typename A::Real;
  const auto n = static_cast<std::int64_t>(weight.size());
  const Real r = A::Rsqrt(A::Dot(x, x, n) / static_cast<Real>(n) + static_cast<Real>(eps));
  for (std::int64_t i = 0; i < n; ++i) y[i] = A::Bf16((x[i] * r) * weight[static_cast<std::size_t>(i)]);
}

// --- RoPE ------------------------------------------------------------------------------------------------------------

namespace {

// Channel at which a wave makes `rotations` turns over the original context.
double YarnChannel(double rotations, double theta, double original, int rope_dim) {
  return rope_dim * std::log(original / (2.0 * std::numbers::pi * rotations)) / (2.0 * std::log(theta));
}

}  // namespace

RopeTable::RopeTable(double theta, const YarnConfig& yarn, int rope_dim) {
  double low = 0, high = 0;
  if (yarn.factor > 1.0) {
    const auto original = static_cast<double>(yarn.original_max_position_embeddings);
    low = std::max(std::floor(YarnChannel(yarn.beta_fast, theta, original, rope_dim)), 0.0);
    high = std::min(std::ceil(YarnChannel(yarn.beta_slow, theta, original, rope_dim)), rope_dim - 1.0);
    if (low == high) high += 0.001;
  }
  for (int j = 0; j < rope_dim / 2; ++j) {
    double f = std::pow(theta, -2.0 * j / rope_dim);
    if (yarn.factor > 1.0) {
      const double ramp = std::clamp((j - low) / (high - low), 0.0, 1.0);
      f = f / yarn.factor * ramp + f * (1.0 - ramp);
    }
    frequencies_.push_back(static_cast<float>(f));
  }
}

void RopeTable::CosSin(std::int64_t position, std::vector<float>* cosine, std::vector<float>* sine) const {
  cosine->clear();
  sine->clear();
  for (float f : frequencies_) {
    const float angle = static_cast<float>(position) * f;
    cosine->push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
    sine->push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
  }
}

template <typename A>
void ApplyRope(const RopeTable& table, std::int64_t position, RopeDirection direction, typename A::Real* x, std::int64_t width) {
  using Real = typename A::Real;
  std::vector<float> cosine, sine;
  table.CosSin(position, &cosine, &sine);
  Real* rotated = x + width - 2 * static_cast<std::int64_t>(cosine.size());
  for (std::size_t j = 0; j < cosine.size(); ++j) {
    const Real c = cosine[j];
    const Real s = direction == RopeDirection::kForward ? sine[j] : -sine[j];
    const Real a = rotated[2 * j], b = rotated[2 * j + 1];
    rotated[2 * j] = A::Bf16(a * c - b * s);
    rotated[2 * j + 1] = A::Bf16(a * s + b * c);
  }
}

// --- hyper-connections -----------------------------------------------------------------------------------------------

HcParameters LoadHc(const HcWeights& weights) {
  return {ReadParameters(weights.fn), ReadParameters(weights.base), ReadParameters(weights.scale), weights.fn.shape[0]};
}

namespace {

// m_i = (W_i . u) * r for every row of W.
template <typename A>
std::vector<typename A::Real> HcProject(const ModelConfig& config, const HcParameters& site, const typename A::Real* stream) {
  using Real = typename A::Real;
  const std::int64_t width = std::int64_t{config.hc_mult} * config.hidden_size;
  const Real r = A::Rsqrt(A::Dot(stream, stream, width) / static_cast<Real>(width) + static_cast<Real>(config.rms_norm_eps));
  std::vector<Real> fn_row(static_cast<std::size_t>(width));
  std::vector<Real> m;
  for (std::int64_t i = 0; i < site.rows; ++i) {
    std::copy_n(site.fn.begin() + i * width, width, fn_row.begin());
    m.push_back(A::Dot(fn_row.data(), stream, width) * r);
  }
  return m;
}

// In place on C[S, S]: softmax of the rows plus eps, then columns, then (iterations - 1) times rows and columns.
template <typename A>
void Sinkhorn(std::vector<typename A::Real>& c, std::size_t streams, int iterations, typename A::Real eps) {
  using Real = typename A::Real;
  const auto at = [&](std::size_t j, std::size_t k) -> Real& { return c[j * streams + k]; };
  for (std::size_t j = 0; j < streams; ++j) {
    Real top = at(j, 0);
    for (std::size_t k = 1; k < streams; ++k) top = std::max(top, at(j, k));
    Real sum = 0;
    for (std::size_t k = 0; k < streams; ++k) {
      at(j, k) = A::Exp(at(j, k) - top);
      sum = k == 0 ? at(j, k) : sum + at(j, k);
    }
    for (std::size_t k = 0; k < streams; ++k) at(j, k) = at(j, k) / sum + eps;
  }
  const auto normalize = [&](bool rows) {
    for (std::size_t line = 0; line < streams; ++line) {
      Real sum = rows ? at(line, 0) : at(0, line);
      for (std::size_t i = 1; i < streams; ++i) sum = sum + (rows ? at(line, i) : at(i, line));
      sum = sum + eps;
      for (std::size_t i = 0; i < streams; ++i) {
        Real& value = rows ? at(line, i) : at(i, line);
        value = value / sum;
      }
    }
  };
  normalize(false);
  for (int i = 1; i < iterations; ++i) {
    normalize(true);
    normalize(false);
  }
}

}  // namespace

template <typename A>
HcCoefficients<typename A::Real> HcMix(const ModelConfig& config, const HcParameters& site, const typename A::Real* stream) {
  using Real = typename A::Real;
  const auto streams = static_cast<std::size_t>(config.hc_mult);
  const Real eps = static_cast<Real>(config.hc_eps);
  const std::vector<Real> m = HcProject<A>(config, site, stream);
  HcCoefficients<Real> out;
  for (std::size_t i = 0; i < m.size(); ++i) {
    const std::size_t kind = std::min<std::size_t>(i / streams, 2);
    const Real logit = m[i] * site.scale[kind] + site.base[i];
    if (kind == 0) out.pre.push_back(A::Sigmoid(logit) + eps);
    if (kind == 1) out.post.push_back(2 * A::Sigmoid(logit));
    if (kind == 2) out.mix.push_back(logit);
  }
  Sinkhorn<A>(out.mix, streams, config.hc_sinkhorn_iters, eps);
  return out;
}

template <typename A>
std::vector<typename A::Real> HcReadOut(const ModelConfig& config, const HcParameters& head, const typename A::Real* stream) {
  using Real = typename A::Real;
  std::vector<Real> pre = HcProject<A>(config, head, stream);
  for (std::size_t i = 0; i < pre.size(); ++i) {
    pre[i] = A::Sigmoid(pre[i] * head.scale[0] + head.base[i]) + static_cast<Real>(config.hc_eps);
  }
  return pre;
}

template <typename A>
void HcCollapse(const ModelConfig& config, const typename A::Real* stream, const std::vector<typename A::Real>& pre, typename A::Real* y) {
  using Real = typename A::Real;
  const std::int64_t width = config.hidden_size;
  for (std::int64_t d = 0; d < width; ++d) {
    Real sum = pre[0] * stream[d];
    for (std::size_t i = 1; i < pre.size(); ++i) sum = A::Fma(pre[i], stream[static_cast<std::int64_t>(i) * width + d], sum);
    y[d] = A::Bf16(sum);
  }
}

template <typename A>
void HcExpand(const ModelConfig& config, const typename A::Real* f, const HcCoefficients<typename A::Real>& coefficients,
              typename A::Real* stream) {
  using Real = typename A::Real;
  const std::int64_t width = config.hidden_size;
  const std::size_t streams = coefficients.post.size();
  std::vector<Real> old(streams);
  for (std::int64_t d = 0; d < width; ++d) {
    for (std::size_t j = 0; j < streams; ++j) old[j] = stream[static_cast<std::int64_t>(j) * width + d];
    for (std::size_t k = 0; k < streams; ++k) {
      Real sum = coefficients.post[k] * f[d];
      for (std::size_t j = 0; j < streams; ++j) sum = A::Fma(coefficients.mix[j * streams + k], old[j], sum);
      stream[static_cast<std::int64_t>(k) * width + d] = A::Bf16(sum);
    }
  }
}

#define LOCKSTEP_INSTANTIATE(A)                                                                                          \
  template void RmsNorm<A>(const A::Real*, const std::vector<float>&, double, A::Real*);                                 \
  template void ApplyRope<A>(const RopeTable&, std::int64_t, RopeDirection, A::Real*, std::int64_t);                     \
  template HcCoefficients<A::Real> HcMix<A>(const ModelConfig&, const HcParameters&, const A::Real*);                    \
  template std::vector<A::Real> HcReadOut<A>(const ModelConfig&, const HcParameters&, const A::Real*);                   \
  template void HcCollapse<A>(const ModelConfig&, const A::Real*, const std::vector<A::Real>&, A::Real*);                \
  template void HcExpand<A>(const ModelConfig&, const A::Real*, const HcCoefficients<A::Real>&, A::Real*);
LOCKSTEP_INSTANTIATE(Truth)
LOCKSTEP_INSTANTIATE(Contract)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::reference
