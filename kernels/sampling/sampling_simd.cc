// Compiled once per instruction set.
#include "kernels/sampling/sampling_simd.h"

#include "kernels/contract/exact_math_vec.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

using namespace lockstep::contract;

void SamplingShares(const float* logits, std::int64_t n, float best, float temperature, float* shares_V) {
  const F32x16 top(best), divisor(temperature);
  const auto share = [&](F32x16 logit) { return Exp(Div(Sub(logit, top), divisor)); };
  std::int64_t v = 0;
  for (; v + 16 <= n; v += 16) Store(share(Load(logits + v)), shares_V + v);
  if (v == n) return;
  const int rest = static_cast<int>(n - v);
  StoreN(share(LoadN(logits + v, rest)), shares_V + v, rest);
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
