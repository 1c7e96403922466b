// One or more pretend devices on the CPU. Each has its own allocations, so that data of one device that another touches without a copy is
// a bug the tests can see.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/device/backend.h"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t kDeviceAlignment = 256;
constexpr std::size_t kHostAlignment = 4096;

std::size_t MachineMemory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

std::byte* AlignedAllocate(std::size_t alignment, std::size_t bytes, std::string_view what) {
  void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!data) throw InputError("out of memory: cannot allocate " + std::to_string(bytes) + " bytes for " + std::string(what));
  return static_cast<std::byte*>(data);
}

// What a backend's host memory is: the only one that captured copies may name.
class HostBlocks {
 public:
  std::byte* Allocate(std::size_t bytes, std::string_view what) {
    std::byte* data = AlignedAllocate(kHostAlignment, bytes, what);
    bytes_[data] = bytes;
    return data;
  }
  void Free(std::byte* data) {
    bytes_.erase(data);
    std::free(data);
  }
  bool Hold(const std::byte* data, std::size_t bytes) const {
    const auto after = bytes_.upper_bound(data);
    return after != bytes_.begin() && data + bytes <= std::prev(after)->first + std::prev(after)->second;
  }

 private:
  std::map<const std::byte*, std::size_t> bytes_;
};

// Recorded calls, made again.
class CpuGraph : public Graph {
 public:
  explicit CpuGraph(RecordedCalls calls) : calls_(std::move(calls)) {}
  void Launch() override {
    for (const auto& call : calls_) call();
  }

 private:
  RecordedCalls calls_;
};

class CpuDevice : public Device {
 public:
  CpuDevice(const DeviceSpec& spec, int index, int threads, Profile profile, const HostBlocks& host)
      : description_("cpu:" + std::to_string(index) + " isa=" + std::string(NameOf(spec.isa)) + " threads=" + std::to_string(threads)),
        limit_(spec.memory_limit > 0 ? spec.memory_limit : MachineMemory()),
        table_(MakeCpuTable(spec.isa, profile)),
        host_(host),
        stream_(MakeCpuStream(threads)) {}

  ~CpuDevice() override {
    for (const auto& [data, bytes] : allocations_) std::free(data);
  }

  std::string Description() const override { return description_; }
  const KernelTable& kernels() const override { return table_; }
  Stream& compute() override { return *stream_; }
  Stream& copy() override { return *stream_; }

  std::byte* Allocate(std::size_t bytes, std::string_view what) override {
    LOCKSTEP_CHECK(!stream_->recording());
    if (used_ + bytes > limit_) {
      throw InputError(description_ + ": out of device memory: " + std::string(what) + " needs " + std::to_string(bytes) + " bytes, " +
                       std::to_string(limit_ - used_) + " of " + std::to_string(limit_) + " are free");
    }
    std::byte* data = AlignedAllocate(kDeviceAlignment, bytes > 0 ? bytes : 1, what);
    allocations_[data] = bytes;
    used_ += bytes;
    return data;
  }
  void Free(std::byte* data) override {
    const auto found = allocations_.find(data);
    LOCKSTEP_CHECK(found != allocations_.end());
    used_ -= found->second;
    allocations_.erase(found);
    std::free(data);
  }
  std::size_t memory_limit() const override { return limit_; }
  std::size_t memory_used() const override { return used_; }

  void CopyIn(Stream&, std::byte* device, const std::byte* host, std::size_t bytes) override {
    LOCKSTEP_CHECK(!stream_->recording() || host_.Hold(host, bytes));
    Copy(device, host, bytes);
  }
  void CopyOut(Stream&, std::byte* host, const std::byte* device, std::size_t bytes) override {
    LOCKSTEP_CHECK(!stream_->recording() || host_.Hold(host, bytes));
    Copy(host, device, bytes);
  }
  void CopyWithin(Stream&, std::byte* to, const std::byte* from, std::size_t bytes) override { Copy(to, from, bytes); }
  void Synchronize(Stream&) override { LOCKSTEP_CHECK(!stream_->recording()); }
  void WaitFor(Stream&, Stream&) override { LOCKSTEP_CHECK(!stream_->recording()); }

  // What a real device forbids during a capture stops the program here.
  void BeginCapture() override {
    calls_.clear();
    stream_->Record(&calls_);
  }
  std::unique_ptr<Graph> EndCapture() override {
    stream_->Record(nullptr);
    return std::make_unique<CpuGraph>(std::move(calls_));
  }
  void AbandonCapture() override { stream_->Record(nullptr); }

 private:
  void Copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (RecordedCalls* calls = stream_->recording()) {
      calls->push_back([to, from, bytes] { std::memcpy(to, from, bytes); });
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  std::string description_;
  std::size_t limit_, used_ = 0;
  KernelTable table_;
  const HostBlocks& host_;
  std::unique_ptr<CpuStream> stream_;
  std::map<std::byte*, std::size_t> allocations_;
  RecordedCalls calls_;
};

class CpuBackend : public Backend {
 public:
  CpuBackend(const DeviceSpec& spec, Profile profile) : host_table_(MakeCpuTable(spec.isa, profile)) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    const int threads = spec.threads > 0 ? spec.threads : std::max(1, cores / spec.count());
    for (int index : spec.indices) devices_.push_back(std::make_unique<CpuDevice>(spec, index, threads, profile, host_));
    host_stream_ = MakeCpuStream(threads);
  }

  int device_count() const override { return static_cast<int>(devices_.size()); }
  Device& device(int index) override { return *devices_[static_cast<std::size_t>(index)]; }
  std::byte* AllocateHost(std::size_t bytes, std::string_view what) override { return host_.Allocate(bytes, what); }
  void FreeHost(std::byte* data) override { host_.Free(data); }
  CpuStream& host_stream() override { return *host_stream_; }
  const KernelTable& host_kernels() const override { return host_table_; }

 private:
  HostBlocks host_;
  std::vector<std::unique_ptr<CpuDevice>> devices_;
  std::unique_ptr<CpuStream> host_stream_;
  KernelTable host_table_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const DeviceSpec& spec, Profile profile) { return std::make_unique<CpuBackend>(spec, profile); }

Profile DefaultProfile(const DeviceSpec& spec) {
  return spec.kind == DeviceSpec::Kind::kCpu ? Profile::kSm90 : CudaProfile(spec.indices.front());
}

std::unique_ptr<Backend> MakeBackend(const DeviceSpec& spec, Profile profile) {
  return spec.kind == DeviceSpec::Kind::kCpu ? MakeCpuBackend(spec, profile) : MakeCudaBackend(spec, profile);
}

}  // namespace lockstep::kernels
