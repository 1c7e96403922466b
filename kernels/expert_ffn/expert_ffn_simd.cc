// Compiled once per instruction set.
#include "kernels/expert_ffn/expert_ffn_simd.h"

#include "kernels/contract/exact_math_vec.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

struct Bounds {
  bool bounded;
  float limit;
};

LOCKSTEP_INLINE F32x16 SwiGluOf(F32x16 a, F32x16 b, Bounds bounds, const float* weight) {
  if (bounds.bounded) {
    const F32x16 upper(bounds.limit), lower(-bounds.limit);
    a = Select(Less(upper, a), upper, a);
    b = Select(Less(upper, b), upper, Select(Less(b, lower), lower, b));
  }
  const F32x16 value = Mul(Silu(a), b);
  return weight ? Mul(F32x16(*weight), value) : value;
}

}  // namespace

void SwiGlu(std::uint16_t* gate, const std::uint16_t* up, std::int64_t n, float limit, const float* weight) {
  const Bounds bounds = {limit > 0.0f, limit};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    StoreBF16(SwiGluOf(LoadBF16(gate + i), LoadBF16(up + i), bounds, weight), gate + i);
  if (i == n) return;
  const int rest = static_cast<int>(n - i);
  StoreBF16N(SwiGluOf(LoadBF16N(gate + i, rest), LoadBF16N(up + i, rest), bounds, weight), gate + i, rest);
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
