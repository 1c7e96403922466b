// Times every CUDA operation but experts at the full shapes of both models, beside its floor, and compares sampled rows of each
// timed result with the CPU kernel's bits. Usage: context_timing [attention | index | rows [operation] | dense | projections [shape]]. Exit 1 if a bit differs.
#include <cstdio>
#include <cstring>
#include <exception>

#include "harness/gpu/timing_cases.h"

namespace lockstep::timing {
namespace {

// Bytes read and written by a large copy.
double MeasuredBytesPerMicrosecond(CudaStream& stream) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  std::byte *from, *to;
  CheckCuda(cudaMalloc(reinterpret_cast<void**>(&from), kBytes), "copy");
  CheckCuda(cudaMalloc(reinterpret_cast<void**>(&to), kBytes), "copy");
  CheckCuda(cudaMemset(from, 1, kBytes), "copy");
  const double us = EventMicroseconds(stream, [&] { CheckCuda(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream.handle()), "copy"); });
  cudaFree(from);
  cudaFree(to);
  return 2.0 * static_cast<double>(kBytes) / us;
}

int Main(int argc, char** argv) {
  const auto wanted = [&](const char* part) { return argc < 2 || std::strcmp(argv[1], part) == 0; };
  CudaStream stream(0);
  const auto cpu = kernels::MakeCpuStream(8);
  Values values(11);
  Table table;
  Ceilings ceilings;
  ceilings.bytes_per_us = MeasuredBytesPerMicrosecond(stream);
  std::printf("copy %.2f TB/s; matrix products assumed at %.0f TFLOP/s, fp32 multiply-adds at %.1f T/s\n", ceilings.bytes_per_us * 1e-6,
              ceilings.mma_flop_per_us * 1e-6, ceilings.fma_per_us * 1e-6);
  TimingRun run{stream, *cpu, kernels::MakeCpuTable(BestIsa(), Profile::kSm90), values, ceilings, table, argc > 2 ? argv[2] : ""};
  if (wanted("rows")) TimeRowOperations(run);
  if (wanted("dense")) TimeDenseLinears(run);
  if (wanted("projections")) TimeProjections(run);
  if (wanted("attention")) TimeAttention(run);
  if (wanted("index")) TimeIndexSelect(run);
  return table.failures() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace lockstep::timing

int main(int argc, char** argv) {
  try {
    return lockstep::timing::Main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
