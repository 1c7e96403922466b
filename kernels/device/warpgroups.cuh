// Warps of a block with different parts: barriers of some of its threads, and registers that warpgroups give each other.
#pragma once

namespace lockstep::kernels {

// Barrier `kBarrier` (0 is the block's own) of kThreads threads, those that arrive and those that wait.
template <int kBarrier, int kThreads>
__device__ inline void SyncSome() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
template <int kBarrier, int kThreads>
__device__ inline void ArriveSome() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// Registers a thread, from here on, of all threads of a warpgroup: fewer or more than the kernel's. Needs a launch bound of blocks, and one branch a role.
template <int kCount>
__device__ inline void GiveRegisters() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ inline void TakeRegisters() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

}  // namespace lockstep::kernels
