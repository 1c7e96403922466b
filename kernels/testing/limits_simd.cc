// Compiled once per instruction set.
#include "kernels/testing/limits_simd.h"

#include "kernels/contract/fold.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

using namespace lockstep::contract;

float ReadAll(const float* x, std::int64_t n) {
  LanesF sum;
  for (F32x16& lanes : sum.lanes) lanes = F32x16(0.0f);
  for (std::int64_t i = 0; i < n; i += 128) {
    for (int v = 0; v < 8; ++v) sum.lanes[v] = Add(sum.lanes[v], Load(x + i + 16 * v));
  }
  return Fold(sum);
}

float MultiplyAdd(std::int64_t rounds) {
  constexpr int kChains = 10;
  F32x16 chain[kChains];
  for (int v = 0; v < kChains; ++v) chain[v] = F32x16(static_cast<float>(v));
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (F32x16& c : chain) c = Fma(c, F32x16(0.999f), F32x16(0.001f));
  }
  for (int v = 1; v < kChains; ++v) chain[0] = Add(chain[0], chain[v]);
  return Fold(chain[0]);
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
