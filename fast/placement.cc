#include "fast/placement.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "fast/engine.h"
#include "model/error.h"

namespace lockstep::fast {
namespace {

using kernels::Device;
using kernels::DeviceSpec;
using kernels::KernelTable;
using kernels::Stream;

// Address space without memory behind it until somebody writes.
class Reservations {
 public:
  ~Reservations() {
    while (!bytes_.empty()) Free(bytes_.begin()->first);
  }
  std::byte* Allocate(std::size_t bytes, std::string_view what) {
    void* data = mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw InputError("cannot reserve " + std::to_string(bytes) + " bytes of address space for " +
                       std::string(what));
    bytes_[static_cast<std::byte*>(data)] = bytes;
    used_ += bytes;
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data) {
    const auto found = bytes_.find(data);
    LOCKSTEP_CHECK(found != bytes_.end());
    used_ -= found->second;
    munmap(data, std::max<std::size_t>(found->second, 1));
    bytes_.erase(found);
  }
  std::size_t used() const { return used_; }

 private:
  std::map<std::byte*, std::size_t> bytes_;
  std::size_t used_ = 0;
};

class CountingDevice : public Device {
 public:
  CountingDevice(std::string name, std::size_t limit, const KernelTable& table, Stream& stream)
      : name_(std::move(name)), limit_(limit), table_(table), stream_(stream) {}

  std::string Description() const override { return name_; }
  const KernelTable& kernels() const override { return table_; }
  Stream& compute() override { return stream_; }
  Stream& copy() override { return stream_; }
  bool stores() const override { return false; }

  std::byte* Allocate(std::size_t bytes, std::string_view what) override {
    if (memory_.used() + bytes > limit_) {
      throw InputError(name_ + ": out of device memory: " + std::string(what) + " needs " +
                       std::to_string(bytes) + " bytes, " + std::to_string(limit_ - memory_.used()) + " of " +
                       std::to_string(limit_) + " are free");
    }
    return memory_.Allocate(bytes, what);
  }
  void Free(std::byte* data) override { memory_.Free(data); }
  std::size_t memory_limit() const override { return limit_; }
  std::size_t memory_used() const override { return memory_.used(); }
  void CopyIn(Stream&, std::byte*, const std::byte*, std::size_t) override {}
  void CopyOut(Stream&, std::byte*, const std::byte*, std::size_t) override {}
  void CopyWithin(Stream&, std::byte*, const std::byte*, std::size_t) override {}
  void Synchronize(Stream&) override {}
  void WaitFor(Stream&, Stream&) override {}

 private:
  std::string name_;
  std::size_t limit_;
  const KernelTable& table_;
  Stream& stream_;
  Reservations memory_;
};

class CountingBackend : public kernels::Backend {
 public:
  CountingBackend(const DeviceSpec& spec, std::size_t limit, Profile profile)
      : table_(kernels::MakeCpuTable(Isa::kGeneric, profile)), stream_(kernels::MakeCpuStream(1)) {
    const std::string kind = spec.kind == DeviceSpec::Kind::kCpu ? "cpu:" : "cuda:";
    for (const int index : spec.indices) {
      devices_.push_back(
          std::make_unique<CountingDevice>(kind + std::to_string(index), limit, table_, *stream_));
    }
  }

  int device_count() const override { return static_cast<int>(devices_.size()); }
  Device& device(int index) override { return *devices_[static_cast<std::size_t>(index)]; }
  std::byte* AllocateHost(std::size_t bytes, std::string_view what) override {
    return host_.Allocate(bytes, what);
  }
  void FreeHost(std::byte* data) override { host_.Free(data); }
  kernels::CpuStream& host_stream() override { return *stream_; }
  const KernelTable& host_kernels() const override { return table_; }

 private:
  KernelTable table_;
  std::unique_ptr<kernels::CpuStream> stream_;
  std::vector<std::unique_ptr<CountingDevice>> devices_;
  Reservations host_;
};

std::size_t LimitOf(const DeviceSpec& spec, Profile profile) {
  if (spec.memory_limit > 0) return spec.memory_limit;
  DeviceSpec one = spec;
  one.threads = 1;
  return kernels::MakeBackend(one, profile)->device(0).memory_limit();
}

// The experts of a layer.
void Count(ExpertStore& experts, int layer, int count, DevicePlacement* device) {
  for (int e = 0; e < count; ++e) {
    const bool resident = experts.resident(layer, e);
    (resident ? device->resident : device->streamed) += static_cast<std::size_t>(experts.spec(layer, e).bytes);
    ++(resident ? device->resident_experts : device->streamed_experts);
  }
}

}  // namespace

std::vector<DevicePlacement> PlanPlacement(std::shared_ptr<const Checkpoint> checkpoint,
                                           const EngineOptions& options) {
  const std::size_t limit = LimitOf(options.device, options.numerics.profile);
  FastEngine engine(std::move(checkpoint), options, [limit](const DeviceSpec& spec, Profile profile) {
    return std::make_unique<CountingBackend>(spec, limit, profile);
  });
  const ModelConfig& config = engine.config();
  std::vector<DevicePlacement> placement;
  for (const DeviceMemory& memory : engine.memory()) {
    DevicePlacement device;
    device.limit = limit;
    device.trunk = memory.trunk;
    device.staging = memory.staging;
    device.activations = memory.activations;
    device.session = memory.session;
    placement.push_back(device);
  }
  for (int l = 0; l < config.num_layers; ++l) {
    DevicePlacement& device = placement[static_cast<std::size_t>(engine.device_of(l))];
    if (device.layers++ == 0) device.first_layer = l;
    Count(engine.experts(), l, config.n_routed_experts, &device);
  }
  return placement;
}

}  // namespace lockstep::fast
