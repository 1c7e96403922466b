#include "harness/bench/rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>

namespace lockstep::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr int kRepeats = 5;

// Shortest of a few runs, after one that does not count.
template <typename Work>
double Seconds(const Work& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kRepeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (i > 0) best = std::min(best, seconds);
  }
  return best;
}

double CopyInRate(kernels::Backend& backend, kernels::Device& device) {
  std::byte* host = backend.AllocateHost(kBytes, "copy rate");
  std::memset(host, 1, kBytes);
  const kernels::DeviceArray<std::byte> target(device, kBytes, "copy rate");
  const double seconds = Seconds([&] {
    device.CopyIn(device.copy(), target.data(), host, kBytes);
    device.Synchronize(device.copy());
  });
  backend.FreeHost(host);
  return kBytes / seconds;
}

double HostReadRate(kernels::CpuStream& stream, const std::byte* data) {
  constexpr std::int64_t kPiece = 1 << 20;
  std::atomic<std::uint64_t> sum{0};
  const double seconds = Seconds([&] {
    stream.ParallelFor(static_cast<std::int64_t>(kBytes) / kPiece, 1, [&](std::int64_t begin, std::int64_t end, int) {
      std::uint64_t part = 0;
      for (std::int64_t i = begin * kPiece; i < end * kPiece; i += 8) {
        std::uint64_t word;
        std::memcpy(&word, data + i, sizeof word);
        part += word;
      }
      sum += part;
    });
  });
  return kBytes / seconds;
}

}  // namespace

Rates MeasureRates(kernels::Backend& backend, bool cuda) {
  kernels::Device& device = backend.device(0);
  Rates rates;
  rates.copy_in_bytes = CopyInRate(backend, device);
  if (cuda) {
    MeasureCudaRates(device, &rates);
  } else {
    const kernels::DeviceArray<std::byte> data(device, kBytes, "read rate");
    std::memset(data.data(), 1, kBytes);
    rates.read_bytes = HostReadRate(AsCpu(device.compute()), data.data());
  }
  return rates;
}

}  // namespace lockstep::bench
