// Where the time of a run goes, by operation: a backend that times every kernel call and copy of another one, on the device where there is one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fast/engine.h"
#include "kernels/device/backend.h"

namespace lockstep::bench {

// Times pieces of work of a stream, in its order.
class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void Begin(kernels::Stream& stream) = 0;
  // Ends the piece that Begin began; its time counts for `op`.
  virtual void End(kernels::Stream& stream, std::size_t op) = 0;
  // Waits for everything begun and adds the seconds of op i to seconds[i].
  virtual void Collect(std::vector<double>* seconds) = 0;
};

// For streams whose work is done when the call returns.
std::unique_ptr<OpClock> MakeHostClock();
// For CUDA streams, by events. cuda_bench.cu, or cuda_bench_absent.cc, which throws InputError.
std::unique_ptr<OpClock> MakeCudaClock();

struct OpTime {
  std::string op, detail;  // "linear", "4096x1024 mul1 5"
  std::int64_t calls = 0;
  double seconds = 0;
};

// One exists at a time, because kernels are plain functions.
class OpProfile {
 public:
  OpProfile();
  ~OpProfile();
  OpProfile(const OpProfile&) = delete;
  OpProfile& operator=(const OpProfile&) = delete;

  // Backends that this profile times. It outlives them.
  fast::BackendFactory Backends();
  // The backend made last, untimed.
  kernels::Backend& backend() const { return *backend_; }

  // Counts from here on. Off, calls go straight through. What graphs launch is not seen: engines are timed without them.
  void Start();
  // Everything since Start, the longest first, and stops.
  std::vector<OpTime> Stop();
  bool running() const { return running_; }

  // Does `work` on the stream, timed as `op` with `detail` if the profile runs.
  template <typename Work>
  void Time(kernels::Stream& stream, const char* op, std::string detail, const Work& work) {
    Begin(stream);
    work();
    End(stream, op, std::move(detail));
  }

 private:
  void Begin(kernels::Stream& stream);
  void End(kernels::Stream& stream, const char* op, std::string detail);
  std::size_t IndexOf(const char* op, std::string detail);

  kernels::Backend* backend_ = nullptr;
  std::unique_ptr<OpClock> clock_;
  bool running_ = false;
  std::int64_t pending_ = 0;
  std::vector<OpTime> ops_;
  std::vector<double> seconds_;
};

}  // namespace lockstep::bench
