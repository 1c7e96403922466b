// Times the EXL3 projections of a V4-Flash layer at few rows (mul1; 5 bits as packs have them, and 2.5): sets that read one row, output groups, wide and deep ones; each from a
// captured graph, once with one copy of the weights and once with more copies than the L2 holds; `head`: the head instead. Prints one line a case: microseconds, GB/s packed.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string_view>
#include <vector>

#include "harness/gpu/exl3_spec.h"
#include "harness/gpu/op_timing.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/linear/linear_cuda.h"

namespace lockstep::kernels {
namespace {

constexpr int kCalls = 24;  // of a graph

struct Case {
  const char* name;
  std::int32_t in;
  std::vector<std::int32_t> outs;  // of matrices with one input
  int groups;                      // with inputs of their own; 1: none
  int bits_x2 = 0;
};

// Random trellises, and scales of one sign each way.
std::vector<std::uint64_t> RandomBlob(const LinearSpec& spec) {
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> host(static_cast<std::size_t>(spec.bytes) / 8);
  for (auto& word : host) word = random();
  auto* bytes = reinterpret_cast<std::byte*>(host.data());
  auto* in = reinterpret_cast<float*>(bytes + spec.input_scale);
  auto* out = reinterpret_cast<float*>(bytes + spec.output_scale);
  for (int i = 0; i < spec.in_padded; ++i) in[i] = (random() & 1u) ? 0.02f : -0.02f;
  for (int i = 0; i < spec.out_padded; ++i) out[i] = (random() & 1u) ? 1.0f : -1.0f;
  return host;
}

std::byte* OnDevice(const std::vector<std::uint64_t>& host) {
  void* device = nullptr;
  CheckCuda(cudaMalloc(&device, 8 * host.size()), "blob");
  CheckCuda(cudaMemcpy(device, host.data(), 8 * host.size(), cudaMemcpyHostToDevice), "copy");
  return static_cast<std::byte*>(device);
}

void Time(CudaStream& stream, const Case& c, std::int64_t rows, int copies) {
  std::mt19937_64 random(7);
  std::vector<LinearSpec> specs;
  std::vector<std::vector<std::uint64_t>> hosts;
  double packed = 0;
  for (const std::int32_t out : c.outs) {
    specs.push_back(timing::Exl3Spec(Codebook::kMul1, c.bits_x2, c.in, out));
    hosts.push_back(RandomBlob(specs.back()));
    packed += static_cast<double>(specs.back().input_scale) * c.groups;
  }
  std::vector<const std::byte*> blobs;  // [copies][outs][groups]
  for (int copy = 0; copy < copies; ++copy) {
    for (const std::vector<std::uint64_t>& host : hosts) {
      for (int g = 0; g < c.groups; ++g) blobs.push_back(OnDevice(host));
    }
  }
  std::vector<std::uint16_t> x(static_cast<std::size_t>(rows * c.in * c.groups));
  for (auto& v : x) v = static_cast<std::uint16_t>(0x3f80 + random() % 128 + ((random() & 1u) << 15));
  std::uint16_t *device_x, *device_y;
  const std::int64_t most = *std::max_element(c.outs.begin(), c.outs.end()) * c.groups;
  CheckCuda(cudaMalloc(reinterpret_cast<void**>(&device_x), x.size() * 2), "x");
  CheckCuda(cudaMalloc(reinterpret_cast<void**>(&device_y), static_cast<std::size_t>(rows * most) * c.outs.size() * 2), "y");
  CheckCuda(cudaMemcpy(device_x, x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy");
  const Kernel<LinearSetArgs> kernel = CudaLinearSet();
  const auto run = [&](int call) {
    std::vector<LinearArgs> linears;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      LinearArgs a;
      a.spec = &specs[i];
      const std::byte* const* of_copy = &blobs[(static_cast<std::size_t>(call % copies) * specs.size() + i) * static_cast<std::size_t>(c.groups)];
      a.blob = *of_copy;
      a.groups = c.groups;
      a.blob_G = of_copy;
      a.x = device_x;
      a.x_stride = std::int64_t{c.in} * c.groups;
      a.rows = rows;
      a.y_bf16 = device_y + static_cast<std::int64_t>(i) * rows * most;
      a.y_stride = most;
      linears.push_back(a);
    }
    kernel(stream, {linears.data(), static_cast<int>(linears.size())});
  };
  const double us = timing::GraphMicroseconds(stream, kCalls, run);
  std::printf("%-28s K=%.1f rows=%lld %-11s %7.1f us  %5.0f GB/s packed\n", c.name, c.bits_x2 / 2.0, static_cast<long long>(rows), copies > 1 ? "from memory" : "from L2", us, packed / us * 1e-3);
  for (const std::byte* blob : blobs) cudaFree(const_cast<std::byte*>(blob));
  cudaFree(device_x);
  cudaFree(device_y);
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  using namespace lockstep::kernels;
  CudaStream stream(0);
  if (argc > 1 && std::string_view(argv[1]) == "head") {
    for (const std::int64_t rows : {1, 2, 4, 8}) Time(stream, {"4096->129280", 4096, {129280}, 1, 12}, rows, 3);
    return 0;
  }
  Case cases[] = {{"4096->1024", 4096, {1024}, 1},
                  {"4096->1024+512", 4096, {1024, 512}, 1},
                  {"4096->3x1024+512+2x256", 4096, {1024, 512, 1024, 1024, 256, 256}, 1},
                  {"1024->32768", 1024, {32768}, 1},
                  {"1024->32768+8192", 1024, {32768, 8192}, 1},
                  {"8 x 4096->1024", 4096, {1024}, 8},
                  {"8192->4096", 8192, {4096}, 1}};
  for (const int bits_x2 : {10, 5}) {
    for (const std::int64_t rows : {1, 2, 4, 8}) {
      for (Case& c : cases) {
        c.bits_x2 = bits_x2;
        Time(stream, c, rows, 1);
        Time(stream, c, rows, 12);
      }
    }
  }
  return 0;
}
