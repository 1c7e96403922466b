// D[16 columns of a warp][kSlots rows] += A B over 64 inputs or a multiple: wgmma where the architecture has it, mma.sync elsewhere. The bits of sm_90a
// are the same either way. A: a warp's fragments of kSteps k16 steps. B: [kSteps/4][kSlots][64] fp16, chunks permuted (wgmma_sm90.cuh). All 4 warps
// of a warpgroup take part.
#pragma once

#include "kernels/linear/mma_sm80.cuh"
#include "kernels/linear/wgmma_sm90.cuh"

namespace lockstep::kernels {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kSlots>
struct TileProduct {
  // Products run on after Start. Of the last but one: `a` and the memory of `b` are free after WaitForPrevious. Of all: after Wait, which also
  // makes `sum` readable.
  template <int kSteps>
  static __device__ void Start(float (&sum)[kSlots / 2], const std::uint32_t (&a)[kSteps][4], const std::byte* b, bool accumulate) {
    WgmmaFence();
    const std::uint64_t descriptor = SwizzledDescriptor(b);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      WgmmaF16<kSlots>(sum, a[step], descriptor + step / 4 * (kSlots * 128 / 16) + step % 4 * (32 / 16), accumulate || step > 0);
    }
    WgmmaCommit();
  }
  template <int kSteps>
  static __device__ void WaitForPrevious(const std::uint32_t (&a)[kSteps][4]) {
    WgmmaWait<1>();
    KeepUntilHere(a);
  }
  template <int kSteps>
  static __device__ void Wait(float (&sum)[kSlots / 2], const std::uint32_t (&a)[kSteps][4]) {
    WgmmaWait<0>();
    KeepUntilHere(a);
    ReadFromHere(sum);
  }
};

#else

template <int kSlots>
struct TileProduct {
  template <int kSteps>
  static __device__ void Start(float (&sum)[kSlots / 2], const std::uint32_t (&a)[kSteps][4], const std::byte* b, bool accumulate) {
    const int lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
    if (!accumulate) {
#pragma unroll
      for (float& value : sum) value = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
      float(&c)[4] = *reinterpret_cast<float(*)[4]>(&sum[4 * j]);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const auto* row = reinterpret_cast<const std::uint32_t*>(b + (step / 4 * kSlots + 8 * j + g) * 128);
        const int chunk = 2 * (step % 4);
        const FragmentA fragment = {{a[step][0], a[step][1], a[step][2], a[step][3]}};
        MmaF16(c, fragment, row[(chunk ^ g) * 4 + q], row[((chunk + 1) ^ g) * 4 + q]);
      }
    }
  }
  template <int kSteps>
  static __device__ void WaitForPrevious(const std::uint32_t (&)[kSteps][4]) {}
  template <int kSteps>
  static __device__ void Wait(float (&)[kSlots / 2], const std::uint32_t (&)[kSteps][4]) {}
};

#endif

}  // namespace lockstep::kernels
