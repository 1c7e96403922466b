#include "harness/selftest/broken_backend.h"

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/error.h"

namespace lockstep::harness {
namespace {

using kernels::Backend;
using kernels::Device;
using kernels::KernelTable;
using kernels::Stream;

const KernelTable* good_table = nullptr;
KernelTable parts;  // the broken table's

// Operations that are others in a row are made of them here, so that a fault in one shows wherever it is part of another.
void NormRope(Stream& stream, const kernels::NormRopeArgs& a) {
  if (a.norm.rows > 0) parts.rms_norm(stream, a.norm);
  parts.rope(stream, a.rope);
}

void NormRopePack(Stream& stream, const kernels::NormRopePackArgs& a) {
  NormRope(stream, {a.norm, a.rope});
  parts.pack_rows(stream, a.pack);
}

void ComposeFromParts(KernelTable& table) {
  parts = table;
  table.norm_rope.run = &NormRope;
  table.norm_rope_pack.run = &NormRopePack;
  table.attention_inputs.run = [](Stream& stream, const kernels::AttentionInputsArgs& a) {
    NormRope(stream, a.query);
    parts.rope(stream, a.index_query);
    NormRopePack(stream, a.window);
    parts.sinkhorn(stream, a.mix);
    for (const kernels::PooledRowsArgs& pooled : a.pooled) {
      parts.compress(stream, pooled.compress);
      parts.store_history(stream, pooled.history);
      NormRopePack(stream, pooled.pack);
    }
  };
  table.hc_site.run = [](Stream& stream, const kernels::HcSiteArgs& a) {
    if (a.sum.rows > 0) parts.combine(stream, a.sum);
    if (a.leave.f_TE) parts.hc_expand(stream, a.leave);
    parts.hc_mix(stream, a.mix);
    parts.hc_collapse_norm(stream, a.collapse);
  };
  table.linear_set.run = [](Stream& stream, const kernels::LinearSetArgs& set) {
    if (set.norm.rows > 0) parts.rms_norm(stream, set.norm);
    parts.linear_set(stream, {set.linears, set.count, {}});
  };
  table.route.run = [](Stream& stream, const kernels::RouteArgs& a) {
    parts.router(stream, a.router);
    parts.pair_groups(stream, a.groups);
    parts.sinkhorn(stream, a.mix);
  };
}

KernelTable Broken(const KernelTable& table, const Fault& fault) {
  KernelTable broken = table;
  if (fault.kernels) fault.kernels(broken);
  ComposeFromParts(broken);
  return broken;
}

class BrokenDevice : public Device {
 public:
  BrokenDevice(Device& device, const Fault& fault)
      : device_(device), fault_(fault), table_(Broken(device.kernels(), fault)) {}

  std::string Description() const override { return "broken " + device_.Description(); }
  const KernelTable& kernels() const override { return table_; }
  Stream& compute() override { return device_.compute(); }
  Stream& copy() override { return device_.copy(); }
  // Zeros: what memory happens to hold must not look like poison.
  std::byte* Allocate(std::size_t bytes, std::string_view what) override {
    std::byte* data = device_.Allocate(bytes, what);
    std::memset(data, 0, bytes);
    if (fault_.copy_in && what == fault_.memory) targets_.insert(data);
    return data;
  }
  void Free(std::byte* data) override {
    targets_.erase(data);
    device_.Free(data);
  }
  std::size_t memory_limit() const override { return device_.memory_limit(); }
  std::size_t memory_used() const override { return device_.memory_used(); }

  void CopyIn(Stream& stream, std::byte* device, const std::byte* host, std::size_t bytes) override {
    const auto good = [&](std::size_t n) { device_.CopyIn(stream, device, host, n); };
    targets_.contains(device) ? fault_.copy_in(device, host, bytes, good) : good(bytes);
  }
  void CopyOut(Stream& stream, std::byte* host, const std::byte* device, std::size_t bytes) override {
    device_.CopyOut(stream, host, device, bytes);
  }
  void CopyWithin(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) override {
    device_.CopyWithin(stream, to, from, bytes);
  }
  void Synchronize(Stream& stream) override { device_.Synchronize(stream); }
  void WaitFor(Stream& waiter, Stream& other) override { device_.WaitFor(waiter, other); }
  void BeginCapture() override {
    if (fault_.refuses_captures) throw kernels::NotCapturable();
    device_.BeginCapture();
  }
  std::unique_ptr<kernels::Graph> EndCapture() override { return device_.EndCapture(); }
  void AbandonCapture() override { device_.AbandonCapture(); }
  std::int64_t memory_epoch() const override { return device_.memory_epoch(); }

 private:
  Device& device_;
  const Fault& fault_;
  KernelTable table_;
  std::set<std::byte*> targets_;  // memory that the fault's copies go to
};

class Wrapper : public Backend {
 public:
  Wrapper(std::unique_ptr<Backend> backend, const Fault& fault)
      : backend_(std::move(backend)), fault_(fault), host_table_(Broken(backend_->host_kernels(), fault_)) {
    LOCKSTEP_CHECK(good_table == nullptr);
    good_table = &backend_->host_kernels();
    if (fault_.begin) fault_.begin();
    for (int d = 0; d < backend_->device_count(); ++d) {
      devices_.push_back(std::make_unique<BrokenDevice>(backend_->device(d), fault_));
    }
  }
  ~Wrapper() override { good_table = nullptr; }

  int device_count() const override { return backend_->device_count(); }
  Device& device(int index) override { return *devices_[static_cast<std::size_t>(index)]; }
  std::byte* AllocateHost(std::size_t bytes, std::string_view what) override {
    return backend_->AllocateHost(bytes, what);
  }
  void FreeHost(std::byte* data) override { backend_->FreeHost(data); }
  kernels::CpuStream& host_stream() override { return backend_->host_stream(); }
  const KernelTable& host_kernels() const override { return host_table_; }

 private:
  std::unique_ptr<Backend> backend_;
  Fault fault_;
  KernelTable host_table_;
  std::vector<std::unique_ptr<BrokenDevice>> devices_;
};

}  // namespace

const kernels::KernelTable& Good() { return *good_table; }

fast::BackendFactory BrokenBackend(const Fault& fault) {
  return [fault](const kernels::DeviceSpec& spec, Profile profile) {
    return std::make_unique<Wrapper>(kernels::MakeCpuBackend(spec, profile), fault);
  };
}

}  // namespace lockstep::harness
