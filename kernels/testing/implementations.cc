#include "kernels/testing/implementations.h"

#include "model/error.h"

namespace lockstep::kernels {
namespace {

// Null where this build has no CUDA or this machine no device that it can use.
Device* CudaDevice() {
  static const std::unique_ptr<Backend> backend = []() -> std::unique_ptr<Backend> {
    if (!BuiltWithCuda()) return nullptr;
    try {
      return MakeCudaBackend(ParseDeviceSpec("cuda:0"), Profile::kSm90);
    } catch (const InputError&) {
      return nullptr;
    }
  }();
  return backend ? &backend->device(0) : nullptr;
}

}  // namespace

Implementation::Implementation(Isa isa, Profile profile, int threads)
    : name_(NameOf(isa)), table_(MakeCpuTable(isa, profile)), cpu_(MakeCpuStream(threads)) {}

Implementation::Implementation(Device& device) : name_("cuda"), table_(device.kernels()), device_(&device) {}

void Implementation::Synchronize() const {
  if (device_) device_->Synchronize(device_->compute());
}

std::ostream& operator<<(std::ostream& out, const Implementation& implementation) {
  return out << implementation.name();
}

std::vector<Implementation> Implementations(Profile profile, int threads) {
  std::vector<Implementation> all;
  for (const Isa isa : SupportedIsas()) all.emplace_back(isa, profile, threads);
  if (profile != Profile::kSm90) return all;
  for (const Implementation& device : DeviceImplementations()) all.push_back(device);
  return all;
}

std::vector<Implementation> DeviceImplementations() {
  std::vector<Implementation> all;
  if (Device* device = CudaDevice()) all.emplace_back(*device);
  return all;
}

CallMemory::~CallMemory() {
  for (std::byte* data : allocations_) implementation_->device()->Free(data);
}

void CallMemory::Finish() {
  Device* device = implementation_->device();
  if (!device) return;
  for (const Result& result : results_) {
    if (!result.host.empty())
      device->CopyOut(device->compute(), result.host.data(), result.placed, result.host.size());
  }
  implementation_->Synchronize();
}

const std::byte* CallMemory::Place(std::span<const std::byte> host) {
  Device* device = implementation_->device();
  if (!device || host.empty()) return host.data();
  std::byte* data = device->Allocate(host.size(), "a test's array");
  allocations_.push_back(data);
  device->CopyIn(device->compute(), data, host.data(), host.size());
  return data;
}

}  // namespace lockstep::kernels
