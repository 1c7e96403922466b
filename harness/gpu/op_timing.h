// Timing of single operations on a device: arrays that exist on both sides, graph replays over rotating input sets, a table line with its floor.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/device/cuda_stream.cuh"
#include "model/float_formats.h"

namespace lockstep::timing {

using kernels::CheckCuda;
using kernels::CudaStream;

// The same values in host and device memory.
template <class T>
class Mirror {
 public:
  explicit Mirror(std::size_t count) : host_(count) {
    CheckCuda(cudaMalloc(reinterpret_cast<void**>(&device_), std::max<std::size_t>(count, 1) * sizeof(T)), "timing data");
  }
  explicit Mirror(std::vector<T> values) : Mirror(values.size()) {
    host_ = std::move(values);
    Upload();
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror() { cudaFree(device_); }

  std::vector<T>& host() { return host_; }
  T* device() const { return device_; }
  // Waits: a copy from pageable memory may return while it is under way, and the timed stream does not wait for it.
  void Upload() {
    CheckCuda(cudaMemcpy(device_, host_.data(), host_.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    CheckCuda(cudaDeviceSynchronize(), "copy");
  }
  std::vector<T> Download() const {
    std::vector<T> values(host_.size());
    CheckCuda(cudaMemcpy(values.data(), device_, values.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

 private:
  std::vector<T> host_;
  T* device_ = nullptr;
};

// Normal values without the cost of making each: windows of a table, and long arrays repeat their beginning.
class Values {
 public:
  explicit Values(std::uint64_t seed) : random_(seed), table_(1 << 20), bits_(table_.size()) {
    std::normal_distribution<float> normal;
    for (float& value : table_) value = normal(random_);
  }
  std::uint64_t Draw() { return random_(); }
  std::vector<float> Floats(std::size_t n, float scale = 1.0f) {
    std::vector<float> scaled(table_);
    for (float& value : scaled) value *= scale;
    return Windows(scaled, n);
  }
  std::vector<std::uint16_t> BF16s(std::size_t n, float scale = 1.0f) {
    for (std::size_t i = 0; i < table_.size(); ++i) bits_[i] = FloatToBF16(scale * table_[i]);
    return Windows(bits_, n);
  }

 private:
  template <class T>
  std::vector<T> Windows(const std::vector<T>& table, std::size_t n) {
    std::vector<T> out(n);
    for (std::size_t at = 0; at < n;) {
      const std::size_t begin = random_() % (table.size() / 2), run = std::min(n - at, std::min<std::size_t>(table.size() - begin, 4096 + random_() % 4096));
      std::memcpy(out.data() + at, table.data() + begin, run * sizeof(T));
      at += run;
    }
    return out;
  }

  std::mt19937_64 random_;
  std::vector<float> table_;
  std::vector<std::uint16_t> bits_;
};

// What the card does at best, measured or (multiply-adds) from its clock and units.
struct Ceilings {
  double bytes_per_us = 4.3e6;
  double mma_flop_per_us = 790e6;
  double fma_per_us = 132 * 128 * 1.98e3;
};

// Device time of what `run` enqueues, microseconds: the median of several.
template <class Run>
double EventMicroseconds(CudaStream& stream, const Run& run) {
  constexpr int kWarmUp = 2, kRepeats = 7;
  cudaEvent_t begin, end;
  CheckCuda(cudaEventCreate(&begin), "event");
  CheckCuda(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < kWarmUp + kRepeats; ++i) {
    CheckCuda(cudaEventRecord(begin, stream.handle()), "event");
    run();
    CheckCuda(cudaEventRecord(end, stream.handle()), "event");
    CheckCuda(cudaEventSynchronize(end), "timing");
    float ms = 0.0f;
    CheckCuda(cudaEventElapsedTime(&ms, begin, end), "timing");
    if (i >= kWarmUp) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return 1e3 * times[times.size() / 2];
}

// Device time of one call, microseconds: replays of a graph that calls once a set, so that launches leave no gaps.
template <class Run>
double GraphMicroseconds(CudaStream& stream, int sets, const Run& run) {
  for (int s = 0; s < sets; ++s) run(s);
  CheckCuda(cudaStreamSynchronize(stream.handle()), "warm-up");
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CheckCuda(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), "capture");
  for (int s = 0; s < sets; ++s) run(s);
  CheckCuda(cudaStreamEndCapture(stream.handle(), &graph), "capture");
  CheckCuda(cudaGraphInstantiate(&replay, graph, 0), "graph");
  const double us = EventMicroseconds(stream, [&] { CheckCuda(cudaGraphLaunch(replay, stream.handle()), "replay"); });
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  return us / sets;
}

class Table {
 public:
  // One line; `same` says whether the sampled rows have the CPU kernel's bits.
  void Line(const std::string& op, const std::string& shape, double us, double floor_us, bool same) {
    std::printf("%-18s %-34s %9.1f us  floor %8.2f  x%-6.1f %s\n", op.c_str(), shape.c_str(), us, floor_us, us / floor_us, same ? "same bits" : "DIFFERENT BITS");
    std::fflush(stdout);
    failures_ += same ? 0 : 1;
  }
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

// Whether `count` elements from `begin` are equal; says where not.
template <class T>
bool Same(const char* op, const std::vector<T>& device, const std::vector<T>& expected, std::size_t begin, std::size_t count) {
  for (std::size_t i = begin; i < begin + count; ++i) {
    if (std::memcmp(&device[i], &expected[i], sizeof(T)) == 0) continue;
    std::printf("%s: element %zu of %zu differs\n", op, i - begin, count);
    return false;
  }
  return true;
}

}  // namespace lockstep::timing
