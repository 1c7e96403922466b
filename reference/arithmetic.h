// The reference's one arithmetic parameter: Truth (double, libm, nothing rounded) or Contract (the bits of docs/numerics.md).
// Every operation of reference/ is a template over it.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>

#include "kernels/contract/exact_math.h"
#include "model/float_formats.h"
#include "model/numerics_options.h"

namespace lockstep::reference {

template <typename Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Family F dot: 128 lanes, fma in ascending k, halving fold.
float DotF(const float* a, const float* b, std::int64_t n);

// Halving fold of values[0..width), width a power of two; destroys them.
template <typename Real>
Real Fold(Real* values, std::int64_t width) {
  for (std::int64_t stride = width / 2; stride >= 1; stride /= 2) {
    for (std::int64_t i = 0; i < stride; ++i) values[i] = values[i] + values[i + stride];
  }
  return values[0];
}

struct Truth {
  using Real = double;
  static constexpr bool kTruth = true;

  static double Bf16(double x) { return x; }
  static double Fma(double a, double b, double c) { return a * b + c; }
  static double Exp(double x) { return std::exp(x); }
  static double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
  static double Silu(double x) { return x / (1.0 + std::exp(-x)); }
  static double Softplus(double x) { return x > 30.0 ? x + std::exp(-x) : std::log1p(std::exp(x)); }
  static double Rsqrt(double x) { return 1.0 / std::sqrt(x); }
  static double Dot(const double* a, const double* b, std::int64_t n) {
    return Eigen::Map<const Eigen::VectorXd>(a, n).dot(Eigen::Map<const Eigen::VectorXd>(b, n));
  }
};

struct Contract {
  using Real = float;
  static constexpr bool kTruth = false;

  static float Bf16(float x) { return RoundToBF16(x); }
  static float Fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float Exp(float x) { return contract::Exp(x); }
  static float Sigmoid(float x) { return contract::Sigmoid(x); }
  static float Silu(float x) { return contract::Silu(x); }
  static float Softplus(float x) { return contract::Softplus(x); }
  static float Rsqrt(float x) { return contract::Rsqrt(x); }
  static float Dot(const float* a, const float* b, std::int64_t n) { return DotF(a, b, n); }
};

}  // namespace lockstep::reference
