// Copies from global to shared memory that run beside the computation; plain copies on architectures that have none.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::kernels {

// 16 bytes, both addresses multiples of 16.
__device__ inline void CopyAsync16(void* shared, const void* global) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))), "l"(global) : "memory");
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

// The same for bytes that are not read again soon: they make room in the L2 first, so that code, tables and rows stay there.
__device__ inline void CopyAsync16Once(void* shared, const void* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))), "l"(global), "l"(policy)
               : "memory");
#else
  CopyAsync16(shared, global);
#endif
}

// Brings the cache line of an address to the L2 cache, for a later read that would have to wait for memory.
__device__ inline void PrefetchLine(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// Ends a group of this thread's copies.
__device__ inline void CopyCommit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's groups are still under way. Other threads see the bytes after a barrier.
template <int kPending>
__device__ inline void CopyWait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace lockstep::kernels
