// Barriers in shared memory that copies and threads arrive at, and the copies that do: for code of sm_90. A barrier is named by its shared memory address.
#pragma once

#include <cstdint>

#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

__device__ inline void InitBarrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Shows barriers that this thread made to the copy engine.
__device__ inline void ShowBarriers() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void Arrive(std::uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Arrives, and lets the phase end only after `bytes` of bulk copies.
__device__ inline void ArriveExpecting(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void WaitForPhase(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (!done) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
}

// A multiple of 16 bytes, both addresses multiples of 16.
__device__ inline void CopyBulk(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace lockstep::kernels
