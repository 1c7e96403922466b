// Compiled once per instruction set.
#include "kernels/linear/hadamard_probe.h"

#include "kernels/linear/hadamard.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

void Hadamard128(float* x, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b, x += 128) {
    F32x16 block[8];
    for (int v = 0; v < 8; ++v) block[v] = contract::Load(x + 16 * v);
    Butterfly128(block);
    for (int v = 0; v < 8; ++v) contract::Store(block[v], x + 16 * v);
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
