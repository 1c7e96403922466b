// Times the CUDA expert FFN on full-shape experts with random weights: packed bytes a second at one row an expert, and TFLOP/s at many. Rotates
// over more experts than the L2 holds. Prints one line a case: codebook, bits, experts, rows, microseconds, GB/s of packed weights, TFLOP/s.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "harness/gpu/exl3_spec.h"
#include "kernels/device/backend.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/expert_ffn/expert_ffn_cuda.h"

namespace lockstep::kernels {
namespace {

// Hidden and intermediate size.
struct Shape {
  std::int32_t hidden, intermediate;
};
constexpr Shape kV41 = {5120, 2304}, kV4 = {4096, 2048};

void Time(Codebook codebook, int bits_x2, int experts, std::int64_t rows, int sets, const Shape& shape = kV41) {
  const auto [hidden, intermediate] = shape;
  ExpertSpec spec;
  spec.gate = timing::Exl3Spec(codebook, bits_x2, hidden, intermediate, 0);
  spec.up = timing::Exl3Spec(codebook, bits_x2, hidden, intermediate, spec.gate.bytes);
  spec.down = timing::Exl3Spec(codebook, bits_x2, intermediate, hidden, spec.gate.bytes + spec.up.bytes);
  spec.bytes = spec.gate.bytes + spec.up.bytes + spec.down.bytes;
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> host(static_cast<std::size_t>(spec.bytes) / 8);
  for (auto& word : host) word = random();
  auto* bytes = reinterpret_cast<std::byte*>(host.data());
  for (const LinearSpec* part : {&spec.gate, &spec.up, &spec.down}) {
    auto* in = reinterpret_cast<float*>(bytes + part->input_scale);
    auto* out = reinterpret_cast<float*>(bytes + part->output_scale);
    for (int i = 0; i < part->in_padded; ++i) in[i] = (random() & 1u) ? 0.02f : -0.02f;
    for (int i = 0; i < part->out_padded; ++i) out[i] = (random() & 1u) ? 1.0f : -1.0f;
  }
  std::vector<std::byte*> blobs(static_cast<std::size_t>(experts * sets));
  for (auto& blob : blobs) {
    CheckCuda(cudaMalloc(reinterpret_cast<void**>(&blob), static_cast<std::size_t>(spec.bytes)), "blob");
    CheckCuda(cudaMemcpy(blob, bytes, static_cast<std::size_t>(spec.bytes), cudaMemcpyHostToDevice), "copy");
  }
  const std::int64_t pairs = experts * rows;
  std::vector<std::uint16_t> x(static_cast<std::size_t>(pairs * hidden));
  for (auto& v : x) v = static_cast<std::uint16_t>(0x3f80 + random() % 128 + ((random() & 1u) << 15));
  std::uint16_t *device_x, *device_y;
  CheckCuda(cudaMalloc(reinterpret_cast<void**>(&device_x), x.size() * 2), "x");
  CheckCuda(cudaMalloc(reinterpret_cast<void**>(&device_y), x.size() * 2), "y");
  CheckCuda(cudaMemcpy(device_x, x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy");

  CudaStream stream(0);
  std::vector<ExpertJob> jobs(static_cast<std::size_t>(experts));
  ExpertFfnArgs args;
  args.jobs = jobs.data();
  args.num_jobs = experts;
  args.x = device_x;
  args.hidden = hidden;
  args.limit = 10.0f;
  args.y = device_y;
  const Kernel<ExpertFfnArgs> kernel = CudaExpertFfn();
  const auto run = [&](int set) {
    for (int e = 0; e < experts; ++e) jobs[static_cast<std::size_t>(e)] = {&spec, blobs[static_cast<std::size_t>(set * experts + e)], e * rows, rows};
    kernel(stream, args);
  };
  for (int i = 0; i < 2 * sets; ++i) run(i % sets);
  CheckCuda(cudaStreamSynchronize(stream.handle()), "warm-up");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int repeat = 0; repeat < 15; ++repeat) {
    cudaEventRecord(begin, stream.handle());
    for (int i = 0; i < sets; ++i) run(i);
    cudaEventRecord(end, stream.handle());
    CheckCuda(cudaEventSynchronize(end), "timing");
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(ms / static_cast<float>(sets));
  }
  std::sort(times.begin(), times.end());
  const double seconds = times[times.size() / 2] * 1e-3, weights = 3.0 * hidden * intermediate * experts;
  std::printf("expert_ffn %s K=%.1f experts=%d rows=%lld: %.1f us  %.0f GB/s packed  %.1f TFLOP/s\n", NameOf(codebook).data(), bits_x2 / 2.0, experts,
              static_cast<long long>(rows), seconds * 1e6, weights * bits_x2 / 16 / seconds * 1e-9, 2 * weights * static_cast<double>(rows) / seconds * 1e-12);
  for (std::byte* blob : blobs) cudaFree(blob);
  cudaFree(device_x);
  cudaFree(device_y);
}

}  // namespace
}  // namespace lockstep::kernels

int main() {
  using namespace lockstep;
  for (Codebook codebook : {Codebook::kMul1, Codebook::kMcg}) {
    for (std::int64_t rows : {1, 2, 8}) kernels::Time(codebook, 6, 6, rows, 16);
    for (std::int64_t rows : {16, 64, 128, 256, 512}) kernels::Time(codebook, 6, 24, rows, 4);
  }
  kernels::Time(Codebook::kMul1, 4, 6, 1, 16);
  kernels::Time(Codebook::kMul1, 10, 6, 1, 16);
  for (int bits_x2 : {5, 6}) kernels::Time(Codebook::kMul1, bits_x2, 7, 1, 16, kernels::kV4);
  return 0;
}
