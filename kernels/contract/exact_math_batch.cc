#include "kernels/contract/exact_math_batch.h"

#include <cmath>

#include "kernels/contract/exact_math_batch_simd.h"

namespace lockstep {
namespace {

double SoftplusLibm(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

constexpr float kLargest = 0x1.fffffep127f;
constexpr float kExpOverflow = 0x1.62e42ep6f;  // the largest float whose exponential is finite
constexpr float kExpZero = -0x1.9fe368p6f;     // the smallest float whose exponential rounds to more than 0

}  // namespace

const std::array<ElementaryInfo, 6> kElementaryFunctions = {{
    {Elementary::kExp, "exp", [](double x) { return std::exp(x); }, kExpZero, kExpOverflow},
    {Elementary::kSigmoid, "sigmoid", [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, -kExpOverflow,
     kLargest},
    {Elementary::kSilu, "silu", [](double x) { return x / (1.0 + std::exp(-x)); }, -kExpOverflow, kLargest},
    {Elementary::kSoftplus, "softplus", SoftplusLibm, kExpZero, kLargest},
    {Elementary::kSqrtSoftplus, "sqrt_softplus", [](double x) { return std::sqrt(SoftplusLibm(x)); }, -87.0f,
     kLargest},
    {Elementary::kRsqrt, "rsqrt", [](double x) { return 1.0 / std::sqrt(x); }, 0x1p-149f, kLargest},
}};

void ElementaryBatch(Isa isa, Elementary f, const float* in, float* out, std::size_t n) {
  ForIsa(isa, exact_math_batch::generic::Vector, exact_math_batch::avx2::Vector,
         exact_math_batch::avx512::Vector)(f, in, out, n);
}

void ElementaryScalar(Isa isa, Elementary f, const float* in, float* out, std::size_t n) {
  ForIsa(isa, exact_math_batch::generic::Scalar, exact_math_batch::avx2::Scalar,
         exact_math_batch::avx512::Scalar)(f, in, out, n);
}

}  // namespace lockstep
