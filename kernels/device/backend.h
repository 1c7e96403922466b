// The seam between the engine and the hardware: devices with their own memory, streams and kernel tables. cpu_backend.cc is always
// linked; exactly one of cuda_backend.cu and cuda_absent.cc defines MakeCudaBackend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/device/device_spec.h"
#include "kernels/device/stream.h"
#include "kernels/table/kernel_table.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

// Captured work of one device. It may be launched any number of times while the memory that it uses is there.
class Graph {
 public:
  virtual ~Graph() = default;
  // Enqueues the work on the compute stream.
  virtual void Launch() = 0;
};

// Thrown by work that cannot be part of a capture, for want of memory that exists already.
class NotCapturable : public std::exception {
 public:
  const char* what() const noexcept override { return "work that cannot be captured"; }
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Description() const = 0;
  virtual const KernelTable& kernels() const = 0;
  // False for a device that only counts: no kernel runs on it, and whoever takes memory need not make what belongs there.
  virtual bool stores() const { return true; }
  // Kernels and copies of one stream run in order. The copy stream carries expert weights beside the compute stream.
  virtual Stream& compute() = 0;
  virtual Stream& copy() = 0;

  // 256-byte aligned memory of this device. Throws InputError naming `what`, the bytes asked for and the bytes left.
  virtual std::byte* Allocate(std::size_t bytes, std::string_view what) = 0;
  virtual void Free(std::byte* data) = 0;
  virtual std::size_t memory_limit() const = 0;
  virtual std::size_t memory_used() const = 0;

  virtual void CopyIn(Stream& stream, std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  virtual void CopyOut(Stream& stream, std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  virtual void CopyWithin(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // The host waits until everything on the stream is done.
  virtual void Synchronize(Stream& stream) = 0;
  // Work enqueued on `waiter` after this call starts when everything enqueued on `other` before it is done.
  virtual void WaitFor(Stream& waiter, Stream& other) = 0;

  // Between the two the work of the compute stream is taken into a graph and not run. The host may neither wait for the device nor take
  // memory from it; host memory of copies must be the backend's, and is read and written when the graph runs. Arguments are taken as they
  // are: what a graph is to read anew each time lies in device memory. A device without graphs refuses.
  virtual void BeginCapture() { throw NotCapturable(); }
  virtual std::unique_ptr<Graph> EndCapture() { return nullptr; }
  // Ends a capture in whatever state it is.
  virtual void AbandonCapture() {}
  // Changes when memory is gone that kernels had for themselves: graphs captured before are void.
  virtual std::int64_t memory_epoch() const { return 0; }
  // Gives back such memory, and with `keeps` not what is gone from now on, until the next call: a step that launches graphs piece by piece may see
  // kernels between them grow out of memory that the later pieces name.
  virtual void KeepOldMemory(bool) {}
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual int device_count() const = 0;
  virtual Device& device(int index) = 0;
  // Host memory that every device can copy from at full speed (pinned where that exists). 4096-byte aligned.
  virtual std::byte* AllocateHost(std::size_t bytes, std::string_view what) = 0;
  virtual void FreeHost(std::byte* data) = 0;
  // CPU lane: runs host kernels on host memory beside the devices.
  virtual CpuStream& host_stream() = 0;
  virtual const KernelTable& host_kernels() const = 0;
};

std::unique_ptr<Backend> MakeCpuBackend(const DeviceSpec& spec, Profile profile);
// Throws InputError when the program was built without CUDA.
std::unique_ptr<Backend> MakeCudaBackend(const DeviceSpec& spec, Profile profile);
// The profile that the devices compute if nobody asks for one: sm90 on CPUs and on CUDA devices that are not there, else what this build's code
// computes on the first of them.
Profile DefaultProfile(const DeviceSpec& spec);
// Of a CUDA device.
Profile CudaProfile(int index);
// Whether MakeCudaBackend can succeed in this build.
bool BuiltWithCuda();
std::unique_ptr<Backend> MakeBackend(const DeviceSpec& spec, Profile profile);

// Typed device memory that frees itself.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, std::size_t count, std::string_view what)
      : device_(&device), count_(count), data_(count ? reinterpret_cast<T*>(device.Allocate(count * sizeof(T), what)) : nullptr) {}
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(count_, other.count_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceArray() {
    if (data_) device_->Free(reinterpret_cast<std::byte*>(data_));
  }

  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(data_); }

 private:
  Device* device_ = nullptr;
  std::size_t count_ = 0;
  T* data_ = nullptr;
};

// Typed host memory of a backend that frees itself.
template <typename T>
class HostArray {
 public:
  HostArray() = default;
  HostArray(Backend& backend, std::size_t count, std::string_view what)
      : backend_(&backend), count_(count), data_(count ? reinterpret_cast<T*>(backend.AllocateHost(count * sizeof(T), what)) : nullptr) {}
  HostArray(HostArray&& other) noexcept { *this = std::move(other); }
  HostArray& operator=(HostArray&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(count_, other.count_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~HostArray() {
    if (data_) backend_->FreeHost(reinterpret_cast<std::byte*>(data_));
  }

  T* data() const { return data_; }
  std::size_t size() const { return count_; }

 private:
  Backend* backend_ = nullptr;
  std::size_t count_ = 0;
  T* data_ = nullptr;
};

}  // namespace lockstep::kernels
