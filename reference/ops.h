// RMSNorm, RoPE and hyper-connections (mHC). docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <vector>

#include "model/checkpoint.h"
#include "reference/arithmetic.h"

namespace lockstep::reference {

// y = bf16((x * Rsqrt(mean(x^2) + eps)) * weight), per row of n.
template <typename A>
void RmsNorm(const typename A::Real* x, const std::vector<float>& weight, double eps, typename A::Real* y);

// Cosines and sines of one layer kind, made on demand from the frequencies. Pair j of the rotated channels is (2j, 2j+1).
class RopeTable {
 public:
  // `theta` and, if yarn.factor > 1, YaRN scaling; `rope_dim` channels.
  RopeTable(double theta, const YarnConfig& yarn, int rope_dim);

  const std::vector<float>& frequencies() const { return frequencies_; }
  // cos and sin of angle position * f_j, each [rope_dim / 2].
  void CosSin(std::int64_t position, std::vector<float>* cosine, std::vector<float>* sine) const;

 private:
  std::vector<float> frequencies_;
};

enum class RopeDirection { kForward, kInverse };

// Rotates the last rope_dim channels of x[width] in place.
template <typename A>
void ApplyRope(const RopeTable& table, std::int64_t position, RopeDirection direction, typename A::Real* x, std::int64_t width);

// Coefficients of one hyper-connection site for one token.
template <typename Real>
struct HcCoefficients {
  std::vector<Real> pre, post;  // [S]
  std::vector<Real> mix;        // C, [S, S] row-major: C[j][k] is the weight of stream j in stream k
};

// Parameters of one site, widened.
struct HcParameters {
  std::vector<float> fn, base, scale;
  std::int64_t rows = 0;  // 2S + S*S, or S for the read-out
};
HcParameters LoadHc(const HcWeights& weights);

// Coefficients from the stream X[S*E] of one token.
template <typename A>
HcCoefficients<typename A::Real> HcMix(const ModelConfig& config, const HcParameters& site, const typename A::Real* stream);

// V4's read-out: only `pre`.
template <typename A>
std::vector<typename A::Real> HcReadOut(const ModelConfig& config, const HcParameters& head, const typename A::Real* stream);

// y[E] = bf16(sum_i pre_i X_i).
template <typename A>
void HcCollapse(const ModelConfig& config, const typename A::Real* stream, const std::vector<typename A::Real>& pre, typename A::Real* y);

// X_k = bf16(post_k f + sum_j C_jk X_j), in place on X[S*E].
template <typename A>
void HcExpand(const ModelConfig& config, const typename A::Real* f, const HcCoefficients<typename A::Real>& coefficients,
              typename A::Real* stream);

}  // namespace lockstep::reference
