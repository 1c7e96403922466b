// Copies of captured work, by a kernel: it overlaps its neighbours, where a copy engine waits for the kernel before it and is waited for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/launch.cuh"

namespace lockstep::kernels {

inline constexpr int kGraphCopyThreads = 512;
inline constexpr std::size_t kMaxGraphCopy = 1 << 20;  // bytes; more are a copy engine's

// Memory of the device, or of the host and pinned: read past all caches, since its owner writes between launches. The next kernel starts when the copy is
// there: kernels read the step's record before they wait for those before them.
static __global__ void __launch_bounds__(kGraphCopyThreads) GraphCopyKernel(uint4* to, const uint4* from, unsigned count) {
  WaitForKernelsBefore();
  const unsigned i = blockIdx.x * kGraphCopyThreads + threadIdx.x;
  if (i < count) to[i] = __ldcv(from + i);
  __threadfence();
  __syncthreads();
  StartNextKernel();
}

// Enqueues a copy; false: it is none of this kernel's.
inline bool GraphCopy(CudaStream& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto places = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes;
  if (places % sizeof(uint4) != 0 || bytes > kMaxGraphCopy || bytes == 0) return false;
  const auto count = static_cast<unsigned>(bytes / sizeof(uint4));
  Launch(GraphCopyKernel, dim3(Blocks(count, kGraphCopyThreads)), kGraphCopyThreads, 0, stream, reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), count);
  CheckLaunch("copy");
  return true;
}

}  // namespace lockstep::kernels
