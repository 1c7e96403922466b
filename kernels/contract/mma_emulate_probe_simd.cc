// Compiled once per instruction set.
#include "kernels/contract/mma_emulate_probe.h"

#include "kernels/contract/mma_emulate.h"

namespace lockstep::mma_emulate_probe::LOCKSTEP_ISA {
namespace {

template <int kRows>
void AccumulateRows(const MmaEmulateCall& call) {
  contract::MmaDecoded a[kRows];
  contract::F32x16 c[kRows];
  for (int r = 0; r < kRows; ++r) {
    a[r] = {call.values_a[r], call.exponents_a[r]};
    c[r] = contract::Load(call.c + 16 * r);
  }
  contract::MmaAccumulateLanes(call.profile, a, {call.values_b, call.exponents_b}, call.k, c);
  for (int r = 0; r < kRows; ++r) contract::Store(c[r], call.c + 16 * r);
}

}  // namespace

void Accumulate(const MmaEmulateCall& call) {
  switch (call.rows) {
    case 1:
      return AccumulateRows<1>(call);
    case 2:
      return AccumulateRows<2>(call);
    case 3:
      return AccumulateRows<3>(call);
    default:
      return AccumulateRows<4>(call);
  }
}

void DecodePanel(MmaFormat format, const std::uint16_t* bits, std::int64_t k, float* values,
                 std::int32_t* exponents) {
  contract::DecodeMmaPanel(format, bits, k, values, exponents);
}

}  // namespace lockstep::mma_emulate_probe::LOCKSTEP_ISA
