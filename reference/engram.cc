#include "reference/engram.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/error.h"
#include "reference/finite.h"

namespace lockstep::reference {
namespace {

constexpr std::int64_t kTableScaleBlock = 32;

}  // namespace

template <typename A>
Engram<A>::Engram(const Checkpoint& checkpoint, int layer, int index, LinearEngine<A>& linears)
    : config_(checkpoint.config),
      weights_(*checkpoint.weights.layers[static_cast<std::size_t>(layer)].engram),
      linears_(linears),
      hash_(MakeEngramHash(config_.engram, index)) {
  const std::vector<float> q = ReadParameters(weights_.q_weight), k = ReadParameters(weights_.k_weight);
  for (std::size_t i = 0; i < q.size(); ++i) qk_SE_.push_back(static_cast<Real>(q[i]) * static_cast<Real>(k[i]));
}

template <typename A>
void Engram<A>::ReadRows(const std::vector<std::int32_t>& recent, std::int32_t pad, Real* e) const {
  std::vector<std::int32_t> shifted(static_cast<std::size_t>(config_.engram.max_ngram_size));
  EngramShift(recent, pad, shifted);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(config_.engram.columns()));
  EngramRows(hash_, shifted, rows);
  const std::int64_t dim = config_.engram.head_dim;
  const std::int64_t scales = (dim + kTableScaleBlock - 1) / kTableScaleBlock;
  for (std::int64_t row : rows) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const float code = weights_.table.Float(row * dim + d);
      const float scale = weights_.table_scale.empty() ? 1.0f : weights_.table_scale.Float(row * scales + d / kTableScaleBlock);
      const float value = RoundToBF16(code * scale);
      if (!std::isfinite(value)) {
        throw InputError(weights_.table.file + ": tensor " + weights_.table.name + " holds a value that is not finite in row " + std::to_string(row));
      }
      *e++ = value;
    }
  }
}

template <typename A>
void Engram<A>::Apply(const std::vector<std::vector<std::int32_t>>& recent_T, std::int32_t pad, Matrix<Real>& stream_TSE) {
  const std::int64_t width = config_.hidden_size, streams = config_.hc_mult;
  Matrix<Real> e(stream_TSE.rows(), std::int64_t{config_.engram.columns()} * config_.engram.head_dim);
  for (Eigen::Index t = 0; t < e.rows(); ++t) ReadRows(recent_T[static_cast<std::size_t>(t)], pad, e.row(t).data());
  const Matrix<Real> kv = linears_.Apply(weights_.wkv, e);  // keys of the streams, then the value
  const Real eps = static_cast<Real>(config_.rms_norm_eps);
  const Real root = A::kTruth ? static_cast<Real>(1.0 / std::sqrt(static_cast<double>(width)))
                              : static_cast<Real>(static_cast<float>(1.0 / std::sqrt(static_cast<double>(width))));
  std::vector<Real> product(static_cast<std::size_t>(width));
  for (Eigen::Index t = 0; t < e.rows(); ++t) {
    const Real* value = kv.row(t).data() + streams * width;
    for (std::int64_t s = 0; s < streams; ++s) {
      Real* x = stream_TSE.row(t).data() + s * width;
      const Real* key = kv.row(t).data() + s * width;
      for (std::int64_t d = 0; d < width; ++d) product[static_cast<std::size_t>(d)] = x[d] * qk_SE_[static_cast<std::size_t>(s * width + d)];
      const Real dot = A::Dot(product.data(), key, width);
      const Real x_norm = A::Rsqrt(A::Dot(x, x, width) / static_cast<Real>(width) + eps);
      const Real key_norm = A::Rsqrt(A::Dot(key, key, width) / static_cast<Real>(width) + eps);
      const Real g = ((dot * x_norm) * key_norm) * root;
      const Real alpha = A::Sigmoid(std::copysign(std::sqrt(std::max(std::fabs(g), static_cast<Real>(1e-6))), g));
      for (std::int64_t d = 0; d < width; ++d) x[d] = A::Bf16(A::Fma(alpha, value[d], x[d]));
    }
  }
}

template class Engram<Truth>;
template class Engram<Contract>;

}  // namespace lockstep::reference
