// What every .cu file needs: the CUDA stream behind Stream, error checks, and family F's lanes on threads.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/contract/exact_math.h"
#include "kernels/contract/float_ops.h"
#include "kernels/device/cuda_errors.h"
#include "kernels/device/stream.h"

namespace lockstep::kernels {

// Throws InputError that says what failed and what to do.
inline void CheckCuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw InputError("CUDA: " + DescribeCudaError(error, what));
}

class CudaStream : public Stream {
 public:
  explicit CudaStream(int device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t handle() const { return handle_; }
  int device() const { return device_; }
  int processors() const { return processors_; }      // multiprocessors of the device
  int shared_bytes() const { return shared_bytes_; }  // shared memory of one, for all its blocks together
  // Whether kernels can wait for those before them (launch.cuh): their code is of sm_90 or newer.
  bool overlaps() const { return overlaps_; }
  // Device memory for one kernel call's intermediate results: valid until the next call of Scratch with the same slot, work of this
  // stream in between is ordered. Grows and stays; in a capture it throws NotCapturable where it would have to grow.
  std::byte* Scratch(int slot, std::size_t bytes);
  // Gives back what scratch memory has grown out of; with `keeps`, what it grows out of from now on stays until the next call.
  void KeepOldScratch(bool keeps);
  // Device memory that is zero at first and that every user leaves zero. kProducts: for kernels that begin while the one before uses kRows.
  enum class Zeroed { kRows, kProducts };
  std::byte* ZeroedScratch(std::size_t bytes, Zeroed which = Zeroed::kRows);
  // Copies `bytes` of host memory into scratch slot `slot`; the host memory may be reused at once. Throws NotCapturable in a capture.
  std::byte* Upload(int slot, const void* host, std::size_t bytes);
  // What the last overlapping launch means for the next one.
  struct LastLaunch {
    bool waits_first = false;  // it waits for all before it and only then lets the next one start, which may read what that wait was for at once
    bool fills = false;        // it leaves no room for blocks of the next one before its own end
  };
  const LastLaunch& last_launch() const { return last_launch_; }
  void SetLastLaunch(const LastLaunch& launch) { last_launch_ = launch; }
  // How often scratch memory has moved.
  std::int64_t epoch() const { return epoch_; }

 private:
  bool capturing() const;

  static constexpr int kSlots = 12;
  int device_, processors_ = 0, shared_bytes_ = 0;
  bool overlaps_ = false, keeps_old_ = false;
  LastLaunch last_launch_;
  cudaStream_t handle_ = nullptr;
  std::byte* scratch_[kSlots] = {};
  std::vector<std::byte*> old_scratch_;
  std::size_t bytes_[kSlots] = {};
  std::int64_t epoch_ = 0;
};

inline CudaStream& AsCuda(Stream& stream) { return static_cast<CudaStream&>(stream); }
// After a launch. Throws LaunchError; the kernel's caller adds contract and shapes.
inline void CheckLaunch(const char* kernel) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) throw LaunchError(DescribeCudaError(error, kernel));
}

inline unsigned Blocks(std::int64_t n, std::int64_t per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }

#if defined(__CUDACC__)

__device__ inline float BF16Value(std::uint16_t bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

__device__ inline std::uint16_t BF16Bits(float value) {
  unsigned u = __float_as_uint(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// fold of 32 lanes: strides 16, 8, 4, 2, 1; every lane gets the result (addition is commutative, so the halves agree).
__device__ inline float FoldWarp(float x) {
  for (int stride = 16; stride > 0; stride /= 2) x = contract::Add(x, __shfl_xor_sync(0xffffffffu, x, stride));
  return x;
}

inline constexpr int kLanesF = 128;  // threads of a block that computes family F dots: one a lane

// fold of the 128 lanes of a block of 128 threads; every thread gets the result.
__device__ inline float FoldBlock(float x) {
  __shared__ float lanes[kLanesF];
  __syncthreads();
  lanes[threadIdx.x] = x;
  __syncthreads();
  const int lane = threadIdx.x & 31;
  const float low = contract::Add(lanes[lane], lanes[lane + 64]), high = contract::Add(lanes[lane + 32], lanes[lane + 96]);
  return FoldWarp(contract::Add(low, high));
}

// F(a, b) over n by a block of 128 threads. a and b are callables from index to value.
template <class A, class B>
__device__ float DotFBlock(A a, B b, std::int64_t n) {
  float sum = 0.0f;
  for (std::int64_t k = threadIdx.x; k < n; k += kLanesF) sum = contract::Fma(a(k), b(k), sum);
  return FoldBlock(sum);
}

// F(a, b) over n by one warp: thread i holds lanes i, i+32, i+64, i+96.
template <class A, class B>
__device__ float DotFWarp(A a, B b, std::int64_t n) {
  const int lane = threadIdx.x & 31;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (std::int64_t block = 0; block < n; block += kLanesF) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t k = block + 32 * i + lane;
      if (k < n) sum[i] = contract::Fma(a(k), b(k), sum[i]);
    }
  }
  return FoldWarp(contract::Add(contract::Add(sum[0], sum[2]), contract::Add(sum[1], sum[3])));
}

#endif

}  // namespace lockstep::kernels
