#include "kernels/device/cuda_stream.cuh"
#include "kernels/random_exl3/random_exl3_cuda.h"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void FillKernel(RandomExl3Words words, std::uint64_t* out) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kThreads} + threadIdx.x;
  if (i < static_cast<std::uint64_t>(words.words)) out[i] = words.At(static_cast<std::uint32_t>(i));
}

void Run(Stream& stream, const RandomExl3Args& args) {
  const RandomExl3Words words(args);
  auto* out = reinterpret_cast<std::uint64_t*>(args.blob + args.spec->weight);
  FillKernel<<<Blocks(words.words, kThreads), kThreads, 0, AsCuda(stream).handle()>>>(words, out);
  CheckLaunch("random_exl3");
}

}  // namespace

Kernel<RandomExl3Args> CudaRandomExl3() { return {&Run, "random_exl3"}; }

}  // namespace lockstep::kernels
