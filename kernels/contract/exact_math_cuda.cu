#include "kernels/contract/exact_math_cuda.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/contract/exact_math.h"
#include "kernels/contract/exact_math_digest.h"

namespace lockstep {
namespace {

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "exact_math_cuda: %s\n", cudaGetErrorString(error));
  std::abort();
}

__device__ float Evaluate(Elementary f, float x) {
  switch (f) {
    case Elementary::kExp:
      return contract::Exp(x);
    case Elementary::kSigmoid:
      return contract::Sigmoid(x);
    case Elementary::kSilu:
      return contract::Silu(x);
    case Elementary::kSoftplus:
      return contract::Softplus(x);
    case Elementary::kSqrtSoftplus:
      return contract::SqrtSoftplus(x);
    case Elementary::kRsqrt:
      return contract::Rsqrt(x);
  }
  return 0.0f;
}

// Adds to *digest the terms of inputs number 0 .. count-1; the grid may have any size.
__global__ void DigestKernel(Elementary f, bool sampled, std::uint64_t count, unsigned long long* digest) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t sum = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const auto number = static_cast<std::uint32_t>(i);
    const std::uint32_t input = sampled ? contract::SampledInput(number) : number;
    const float result = Evaluate(f, __uint_as_float(input));
    sum += contract::DigestTerm(input, __float_as_uint(result));
  }
  atomicAdd(digest, static_cast<unsigned long long>(sum));  // integers: the order does not matter
}

std::uint64_t Digest(Elementary f, bool sampled, std::uint64_t count) {
  unsigned long long* device_digest = nullptr;
  Check(cudaMalloc(&device_digest, sizeof(*device_digest)));
  Check(cudaMemset(device_digest, 0, sizeof(*device_digest)));
  DigestKernel<<<1024, 256>>>(f, sampled, count, device_digest);
  Check(cudaGetLastError());
  unsigned long long digest = 0;
  Check(cudaMemcpy(&digest, device_digest, sizeof(digest), cudaMemcpyDeviceToHost));
  Check(cudaFree(device_digest));
  return digest;
}

}  // namespace

std::uint64_t CudaSampledDigest(Elementary f) { return Digest(f, true, contract::kSampledInputs); }
std::uint64_t CudaFullDigest(Elementary f) { return Digest(f, false, std::uint64_t{1} << 32); }

}  // namespace lockstep
