// Compiled once per instruction set.
#include "kernels/contract/exact_math_batch_simd.h"

#include "kernels/contract/exact_math_batch.h"
#include "kernels/contract/exact_math_vec.h"

namespace lockstep::exact_math_batch::LOCKSTEP_ISA {
namespace {

// Calls loop(function) with the elementary function as an inlinable object.
template <class Loop>
void WithFunction(Elementary f, Loop loop) {
  switch (f) {
    case Elementary::kExp:
      return loop([](auto x) { return contract::Exp(x); });
    case Elementary::kSigmoid:
      return loop([](auto x) { return contract::Sigmoid(x); });
    case Elementary::kSilu:
      return loop([](auto x) { return contract::Silu(x); });
    case Elementary::kSoftplus:
      return loop([](auto x) { return contract::Softplus(x); });
    case Elementary::kSqrtSoftplus:
      return loop([](auto x) { return contract::SqrtSoftplus(x); });
    case Elementary::kRsqrt:
      return loop([](auto x) { return contract::Rsqrt(x); });
  }
}

}  // namespace

void Vector(Elementary f, const float* in, float* out, std::size_t n) {
  WithFunction(f, [&](auto function) {
    for (std::size_t i = 0; i < n; i += 16) contract::Store(function(contract::Load(in + i)), out + i);
  });
}

void Scalar(Elementary f, const float* in, float* out, std::size_t n) {
  WithFunction(f, [&](auto function) {
    for (std::size_t i = 0; i < n; ++i) out[i] = function(in[i]);
  });
}

}  // namespace lockstep::exact_math_batch::LOCKSTEP_ISA
