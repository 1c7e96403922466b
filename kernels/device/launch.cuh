// Launches that overlap the end of the kernel before them: the next kernel's blocks start while the last blocks run, and wait where they begin for
// everything before. Steps of few rows are chains of short kernels, which would otherwise each pay a launch.
#pragma once

#include <utility>

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

// `kernel` calls BeginKernel, or its two halves, before it touches memory that kernels write.
template <class... Parameters, class... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared_bytes, CudaStream& stream, Arguments&&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle();
  config.attrs = &overlap;
  config.numAttrs = stream.overlaps() ? 1 : 0;  // older code has no wait in its kernels
  stream.SetLastLaunch({});
  CheckCuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "kernel launch");
}

// Lets the launches of a kernel on a device have all the shared memory that a block can get. Costs a call of the driver once.
void AllowShared(const void* kernel, int device);
template <class... Parameters>
void AllowShared(void (*kernel)(Parameters...), int device) {
  AllowShared(reinterpret_cast<const void*>(kernel), device);
}

#if defined(__CUDACC__)
// Lets the blocks of the next kernel start.
__device__ inline void StartNextKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits for the work before this kernel. A kernel that reads something before this must follow one that waits before it starts the next.
__device__ inline void WaitForKernelsBefore() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The other way round: what this kernel waits for is there when the next one starts (CudaStream::LastLaunch::waits_first).
__device__ inline void BeginInTurn() {
  WaitForKernelsBefore();
  StartNextKernel();
}
__device__ inline void BeginKernel() {
  StartNextKernel();
  WaitForKernelsBefore();
}
#endif

}  // namespace lockstep::kernels
