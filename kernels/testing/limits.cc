#include "kernels/testing/limits.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "kernels/testing/limits_simd.h"

namespace lockstep::kernels {
namespace {

// The dense bf16 rate that docs/performance.md measured on the H200, in multiply-adds.
constexpr double kTensorProductsPerSecond = 395e12;

volatile float sink;  // keeps what is measured from being dropped

// The best of a few runs that take some milliseconds each, by the same clocks as benchmarks (bench.h).
template <typename Function>
double BestSeconds(clockid_t clock, Function function) {
  const auto now = [clock] {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double begin = now();
    function();
    best = std::min(best, now() - begin);
  }
  return best;
}

double CpuBytesPerSecond(std::int64_t bytes) {
  const std::int64_t n = bytes / 4, rounds = std::max<std::int64_t>(1, (std::int64_t{32} << 20) / bytes);
  const std::vector<float> values(static_cast<std::size_t>(n), 1.0f);
  const auto read = ForIsa(BestIsa(), generic::ReadAll, avx2::ReadAll, avx512::ReadAll);
  const double seconds = BestSeconds(CLOCK_PROCESS_CPUTIME_ID, [&] {
    for (std::int64_t i = 0; i < rounds; ++i) sink = read(values.data(), n);
  });
  return static_cast<double>(rounds * bytes) / seconds;
}

double DeviceBytesPerSecond(const Implementation& implementation) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  Device& device = *implementation.device();
  const DeviceArray<std::byte> from(device, kBytes, "a bandwidth"), to(device, kBytes, "a bandwidth");
  const double seconds = BestSeconds(CLOCK_MONOTONIC, [&] {
    device.CopyWithin(device.compute(), to.data(), from.data(), kBytes);
    implementation.Synchronize();
  });
  return 2.0 * static_cast<double>(kBytes) / seconds;
}

double CpuProductsPerSecond() {
  constexpr std::int64_t kRounds = 100000;
  const auto multiply_add = ForIsa(BestIsa(), generic::MultiplyAdd, avx2::MultiplyAdd, avx512::MultiplyAdd);
  return 160.0 * static_cast<double>(kRounds) /
         BestSeconds(CLOCK_PROCESS_CPUTIME_ID, [&] { sink = multiply_add(kRounds); });
}

}  // namespace

double BytesPerSecond(const Implementation& implementation, double bytes) {
  // Powers of two from 4 KiB to 256 MiB stand for the sizes between.
  const auto size = std::bit_ceil(static_cast<std::uint64_t>(std::clamp(bytes, 4096.0, 0x1p28)));
  static std::map<std::pair<Device*, std::uint64_t>, double> measured;
  double& rate = measured[{implementation.device(), size}];
  if (rate == 0) {
    rate = implementation.device() ? DeviceBytesPerSecond(implementation)
                                   : CpuBytesPerSecond(static_cast<std::int64_t>(size));
  }
  return rate;
}

double ProductsPerSecond(const Implementation& implementation) {
  static const double cpu = CpuProductsPerSecond();
  return implementation.device() ? kTensorProductsPerSecond : cpu;
}

double FloorSeconds(const Implementation& implementation, const Work& work) {
  const double rate = BytesPerSecond(implementation, std::max(work.bytes, work.footprint));
  return std::max(work.bytes / rate, work.products / ProductsPerSecond(implementation));
}

}  // namespace lockstep::kernels
