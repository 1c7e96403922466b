// Every implementation of the kernels that this build and machine have: what differential tests compare and
// benchmarks time. Tests and benches alone may include this.
#pragma once

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/device/stream.h"
#include "kernels/table/kernel_table.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

// A kernel table, the stream it runs on and where its memory is. CPU implementations run on the caller's own
// arrays, so that a sanitizer sees where each ends; a device runs on copies (CallMemory).
class Implementation {
 public:
  Implementation(Isa isa, Profile profile, int threads);
  explicit Implementation(Device& device);

  // "generic", "avx2", "avx512" or "cuda".
  const std::string& name() const { return name_; }
  const KernelTable& kernels() const { return table_; }
  Stream& stream() const { return device_ ? device_->compute() : *cpu_; }
  // Null: the CPU.
  Device* device() const { return device_; }
  // The host waits until everything on the stream is done.
  void Synchronize() const;

 private:
  std::string name_;
  KernelTable table_;
  std::shared_ptr<CpuStream> cpu_;
  Device* device_ = nullptr;
};

std::ostream& operator<<(std::ostream& out, const Implementation& implementation);

// One for each instruction set that this machine runs, generic first, with `threads` each; then those of
// DeviceImplementations if they compute `profile`.
std::vector<Implementation> Implementations(Profile profile, int threads = 1);

// The first CUDA device (profile sm90) if this build has CUDA and the machine such a device, else empty.
std::vector<Implementation> DeviceImplementations();

// The arrays of one or more calls, where the implementation can reach them.
class CallMemory {
 public:
  explicit CallMemory(const Implementation& implementation) : implementation_(&implementation) {}
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;
  ~CallMemory();

  // What kernels read; null for an empty vector. The vector outlives the calls.
  template <typename T>
  const T* In(const std::vector<T>& host) {
    return reinterpret_cast<const T*>(Place(std::as_bytes(std::span(host))));
  }
  // What they write: travels in as well, so that guards and untouched elements can be checked, and comes back
  // at Finish.
  template <typename T>
  T* InOut(std::vector<T>& host) {
    const auto bytes = std::as_writable_bytes(std::span(host));
    std::byte* placed = const_cast<std::byte*>(Place(bytes));
    results_.push_back({bytes, placed});
    return reinterpret_cast<T*>(placed);
  }
  // A table made for the call, such as one of addresses.
  template <typename T>
  const T* Own(std::vector<T> table) {
    auto kept = std::make_shared<const std::vector<T>>(std::move(table));
    owned_.push_back(kept);
    return In(*kept);
  }
  // What a call may write and nobody looks at.
  template <typename T>
  T* Scratch(std::vector<T> start) {
    return const_cast<T*>(Own(std::move(start)));
  }
  // Waits for the calls and brings the InOut arrays back.
  void Finish();

 private:
  struct Result {
    std::span<std::byte> host;
    const std::byte* placed;
  };
  const std::byte* Place(std::span<const std::byte> host);

  const Implementation* implementation_;
  std::vector<std::byte*> allocations_;
  std::vector<Result> results_;
  std::vector<std::shared_ptr<const void>> owned_;
};

}  // namespace lockstep::kernels
