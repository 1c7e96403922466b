// Times the CUDA expert FFN on full-shape experts with random weights: packed bytes a second at one row an expert, and TFLOP/s at many. Rotates
// over more experts than the L2 holds. Prints one line a case: codebook, bits, experts, hidden size, rows, microseconds (the median of five, the
// least and the most), GB/s of packed weights, TFLOP/s, a hash of the results.
// Arguments: nothing, or "chunks" (prefill of V4-Flash alone) or "many" (also 24 experts of 256 rows).
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "harness/gpu/exl3_spec.h"
#include "harness/gpu/op_timing.h"
#include "harness/synth/routing.h"
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

ExpertSpec Spec(Codebook codebook, int bits_x2, const Shape& shape) {
  const auto [hidden, intermediate] = shape;
  ExpertSpec spec;
  spec.gate = timing::Exl3Spec(codebook, bits_x2, hidden, intermediate, 0);
  spec.up = timing::Exl3Spec(codebook, bits_x2, hidden, intermediate, spec.gate.bytes);
  spec.down = timing::Exl3Spec(codebook, bits_x2, intermediate, hidden, spec.gate.bytes + spec.up.bytes);
  spec.bytes = spec.gate.bytes + spec.up.bytes + spec.down.bytes;
  return spec;
}

// Random trellises, and scales of one sign each way.
std::vector<std::uint64_t> RandomBlob(const ExpertSpec& spec) {
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> blob(static_cast<std::size_t>(spec.bytes) / 8);
  for (auto& word : blob) word = random();
  auto* bytes = reinterpret_cast<std::byte*>(blob.data());
  for (const LinearSpec* part : {&spec.gate, &spec.up, &spec.down}) {
    auto* in = reinterpret_cast<float*>(bytes + part->input_scale);
    auto* out = reinterpret_cast<float*>(bytes + part->output_scale);
    for (int i = 0; i < part->in_padded; ++i) in[i] = (random() & 1u) ? 0.02f : -0.02f;
    for (int i = 0; i < part->out_padded; ++i) out[i] = (random() & 1u) ? 1.0f : -1.0f;
  }
  return blob;
}

// Of the bits of y: the same for every version of the kernels.
std::uint64_t Hash(const std::uint16_t* device_y, std::size_t count) {
  std::vector<std::uint16_t> y(count);
  CheckCuda(cudaMemcpy(y.data(), device_y, count * 2, cudaMemcpyDeviceToHost), "copy");
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::uint16_t bits : y) hash = (hash ^ bits) * 0x100000001b3;
  return hash;
}

// `rows_X`: of each expert. `last_bits_x2`: of the last expert, as shared ones have more; 0: like the others.
void Time(Codebook codebook, int bits_x2, const std::vector<std::int64_t>& rows_X, const std::string& rows_name, int sets, const Shape& shape, int last_bits_x2 = 0) {
  const auto [hidden, intermediate] = shape;
  const int experts = static_cast<int>(rows_X.size());
  const ExpertSpec spec = Spec(codebook, bits_x2, shape), last = Spec(codebook, last_bits_x2 > 0 ? last_bits_x2 : bits_x2, shape);
  const std::vector<std::uint64_t> host = RandomBlob(spec), host_of_last = RandomBlob(last);
  const auto is_last = [&](int e) { return e == experts - 1; };
  std::vector<std::byte*> blobs(static_cast<std::size_t>(experts * sets));
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    const std::vector<std::uint64_t>& from = is_last(static_cast<int>(i) % experts) ? host_of_last : host;
    CheckCuda(cudaMalloc(reinterpret_cast<void**>(&blobs[i]), 8 * from.size()), "blob");
    CheckCuda(cudaMemcpy(blobs[i], from.data(), 8 * from.size(), cudaMemcpyHostToDevice), "copy");
  }
  const std::int64_t pairs = std::accumulate(rows_X.begin(), rows_X.end(), std::int64_t{0});
  std::mt19937_64 random(8);
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
    std::int64_t begin = 0;
    for (int e = 0; e < experts; ++e) {
      const std::int64_t rows = rows_X[static_cast<std::size_t>(e)];
      jobs[static_cast<std::size_t>(e)] = {is_last(e) ? &last : &spec, blobs[static_cast<std::size_t>(set * experts + e)], begin, rows};
      begin += rows;
    }
    kernel(stream, args);
  };
  const auto run_all = [&] {
    for (int i = 0; i < sets; ++i) run(i);
  };
  const bool few = *std::max_element(rows_X.begin(), rows_X.end()) <= 8;  // more rows upload their lists, which no graph can
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(few ? timing::GraphMicroseconds(stream, sets, run) : timing::EventMicroseconds(stream, run_all) / sets);
  std::sort(times.begin(), times.end());
  const double us = times[times.size() / 2];
  const double seconds = us * 1e-6, of_expert = 3.0 * hidden * intermediate;
  const double packed = of_expert * ((experts - 1) * spec.gate.bits_x2 + last.gate.bits_x2) / 16;
  std::printf("expert_ffn %s K=%.1f experts=%d hidden=%d %s: %.1f us (%.1f to %.1f)  %.0f GB/s packed  %.1f TFLOP/s  y %016llx%s\n", NameOf(codebook).data(), bits_x2 / 2.0, experts, hidden,
              rows_name.c_str(), us, times.front(), times.back(), packed / seconds * 1e-9, 2 * of_expert * static_cast<double>(pairs) / seconds * 1e-12,
              static_cast<unsigned long long>(Hash(device_y, x.size())), last_bits_x2 > 0 ? (", the last K=" + std::to_string(last_bits_x2 / 2)).c_str() : "");
  for (std::byte* blob : blobs) cudaFree(blob);
  cudaFree(device_x);
  cudaFree(device_y);
}

void Time(Codebook codebook, int bits_x2, int experts, std::int64_t rows, int sets, const Shape& shape = kV41, int last_bits_x2 = 0) {
  Time(codebook, bits_x2, std::vector<std::int64_t>(static_cast<std::size_t>(experts), rows), "rows=" + std::to_string(rows), sets, shape, last_bits_x2);
}

// A layer of V4-Flash in prefill: six picks a token, three quarters of them of the more popular half of 256 experts.
void TimeChunk(int bits_x2, std::int64_t tokens) {
  std::vector<std::int64_t> rows_X;
  for (const double picks : synth::PopularityLaw(256, 6, 0.75)) rows_X.push_back(std::llround(picks * static_cast<double>(tokens)));
  Time(Codebook::kMul1, bits_x2, rows_X, "tokens=" + std::to_string(tokens), 1, kV4);
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  using namespace lockstep;
  for (std::int64_t tokens : {4096, 8192}) kernels::TimeChunk(6, tokens);
  if (argc > 1 && std::strcmp(argv[1], "chunks") == 0) return 0;
  for (const kernels::Shape& shape : {kernels::kV41, kernels::kV4}) kernels::Time(Codebook::kMul1, 6, 24, 256, 4, shape);
  if (argc > 1 && std::strcmp(argv[1], "many") == 0) return 0;
  for (Codebook codebook : {Codebook::kMul1, Codebook::kMcg}) {
    for (std::int64_t rows : {1, 2, 8}) kernels::Time(codebook, 6, 6, rows, 16);
    for (std::int64_t rows : {16, 64, 128, 256, 512}) kernels::Time(codebook, 6, 24, rows, 4);
  }
  kernels::Time(Codebook::kMul1, 4, 6, 1, 16);
  kernels::Time(Codebook::kMul1, 10, 6, 1, 16);
  for (int bits_x2 : {5, 6}) kernels::Time(Codebook::kMul1, bits_x2, 7, 1, 16, kernels::kV4);
  for (int shared_bits_x2 : {8, 10}) kernels::Time(Codebook::kMul1, 6, 7, 1, 16, kernels::kV4, shared_bits_x2);
  return 0;
}
