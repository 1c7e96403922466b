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
  if (call.rows == 4) return AccumulateRows<4>(call);
  for (int r = 0; r < call.rows; ++r) {
    MmaEmulateCall row = call;
    row.values_a[0] = call.values_a[r];
    row.exponents_a[0] = call.exponents_a[r];
    row.c = call.c + 16 * r;
    AccumulateRows<1>(row);
  }
}

void DecodePanel(MmaFormat format, const std::uint16_t* bits, std::int64_t k, float* values,
                 std::int32_t* exponents) {
  contract::DecodeMmaPanel(format, bits, k, values, exponents);
}

}  // namespace lockstep::mma_emulate_probe::LOCKSTEP_ISA
