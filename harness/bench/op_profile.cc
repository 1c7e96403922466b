#include "harness/bench/op_profile.h"

#include <algorithm>
#include <chrono>

#include "model/error.h"

namespace lockstep::bench {
namespace {

using kernels::Backend;
using kernels::Device;
using kernels::KernelTable;
using kernels::Stream;

OpProfile* active = nullptr;         // the one profile
const KernelTable* inner = nullptr;  // of its devices

// --- what a call works on ----------------------------------------------------------------------------------------------

std::string FormOf(const kernels::LinearSpec& spec) {
  if (spec.kind == kernels::LinearSpec::Kind::kExl3) {
    const std::string half = spec.bits_x2 % 2 == 0 ? "" : ".5";
    return std::string(NameOf(spec.codebook)) + " " + std::to_string(spec.bits_x2 / 2) + half;
  }
  constexpr const char* kNames[] = {"bf16", "f16", "f32", "fp8", "fp4"};
  return kNames[static_cast<int>(spec.kind)];
}

template <typename Args>
std::string Detail(const Args&) {
  return "";
}
std::string Detail(const kernels::LinearArgs& a) {
  const std::string groups = a.groups > 1 ? std::to_string(a.groups) + " x " : "";
  return groups + std::to_string(a.spec->in_features) + "->" + std::to_string(a.spec->out_features) + " " + FormOf(*a.spec);
}
std::string Detail(const kernels::LinearSetArgs& set) {
  std::string text = std::to_string(set.linears->spec->in_features) + "->";
  for (int i = 0; i < set.count; ++i) text += (i > 0 ? "+" : "") + std::to_string(set.linears[i].spec->out_features);
  return text;
}
std::string Detail(const kernels::ExpertFfnArgs& a) { return a.token ? "routed" : "shared"; }
std::string Detail(const kernels::AttentionArgs& a) { return a.all_visible ? "window and all" : a.selected_TK ? "window and selected" : "window"; }
std::string Detail(const kernels::IndexSelectArgs& a) { return a.candidates_in ? "in candidates" : a.candidates_out ? "and candidates" : ""; }
std::string Detail(const kernels::RmsNormArgs& a) { return std::to_string(a.n); }
std::string Detail(const kernels::RopeArgs& a) { return std::to_string(a.heads) + " heads"; }
std::string Detail(const kernels::HcMixArgs& a) { return a.read_out ? "read-out" : ""; }

// --- timed kernels -----------------------------------------------------------------------------------------------------

template <typename Args>
struct ArgsOf;
template <typename Args>
struct ArgsOf<kernels::Kernel<Args> KernelTable::*> {
  using Type = Args;
};

template <auto kMember, typename Args>
struct Timed {
  static inline const char* op = "";
  static void Run(Stream& stream, const Args& args) {
    const auto& kernel = inner->*kMember;
    if (!active->running()) return kernel(stream, args);
    active->Time(stream, op, Detail(args), [&] { kernel(stream, args); });
  }
};

template <auto kMember>
void TimeKernel(const char* op, KernelTable* table) {
  using Args = typename ArgsOf<decltype(kMember)>::Type;
  Timed<kMember, Args>::op = op;
  (table->*kMember).run = &Timed<kMember, Args>::Run;
}

KernelTable TimedTable(const KernelTable& table) {
  KernelTable timed = table;
  TimeKernel<&KernelTable::embed>("embed", &timed);
  TimeKernel<&KernelTable::rms_norm>("rms_norm", &timed);
  TimeKernel<&KernelTable::rope>("rope", &timed);
  TimeKernel<&KernelTable::norm_rope>("norm_rope", &timed);
  TimeKernel<&KernelTable::hc_mix>("hc_mix", &timed);
  TimeKernel<&KernelTable::sinkhorn>("sinkhorn", &timed);
  TimeKernel<&KernelTable::hc_collapse_norm>("hc_collapse_norm", &timed);
  TimeKernel<&KernelTable::hc_expand>("hc_expand", &timed);
  TimeKernel<&KernelTable::hc_site>("hc_site", &timed);
  TimeKernel<&KernelTable::linear>("linear", &timed);
  TimeKernel<&KernelTable::linear_set>("linears", &timed);
  TimeKernel<&KernelTable::pack_rows>("pack_rows", &timed);
  TimeKernel<&KernelTable::norm_rope_pack>("norm_rope_pack", &timed);
  TimeKernel<&KernelTable::unpack_rows>("unpack_rows", &timed);
  TimeKernel<&KernelTable::compress>("compress", &timed);
  TimeKernel<&KernelTable::store_history>("store_history", &timed);
  TimeKernel<&KernelTable::attention_inputs>("attention_inputs", &timed);
  TimeKernel<&KernelTable::index_select>("index_select", &timed);
  TimeKernel<&KernelTable::attention>("attention", &timed);
  TimeKernel<&KernelTable::router>("router", &timed);
  TimeKernel<&KernelTable::pair_groups>("pair_groups", &timed);
  TimeKernel<&KernelTable::route>("route", &timed);
  TimeKernel<&KernelTable::expert_ffn>("expert_ffn", &timed);
  TimeKernel<&KernelTable::combine>("combine", &timed);
  TimeKernel<&KernelTable::engram_gate>("engram_gate", &timed);
  TimeKernel<&KernelTable::sample>("sample", &timed);
  return timed;
}

// --- timed devices -----------------------------------------------------------------------------------------------------

class TimedDevice : public Device {
 public:
  TimedDevice(Device& device, OpProfile& profile) : device_(device), profile_(profile), table_(TimedTable(device.kernels())) {}

  std::string Description() const override { return device_.Description(); }
  const KernelTable& kernels() const override { return table_; }
  Stream& compute() override { return device_.compute(); }
  Stream& copy() override { return device_.copy(); }
  std::byte* Allocate(std::size_t bytes, std::string_view what) override { return device_.Allocate(bytes, what); }
  void Free(std::byte* data) override { device_.Free(data); }
  std::size_t memory_limit() const override { return device_.memory_limit(); }
  std::size_t memory_used() const override { return device_.memory_used(); }

  void CopyIn(Stream& stream, std::byte* device, const std::byte* host, std::size_t bytes) override {
    profile_.Time(stream, "copy in", "", [&] { device_.CopyIn(stream, device, host, bytes); });
  }
  void CopyOut(Stream& stream, std::byte* host, const std::byte* device, std::size_t bytes) override {
    profile_.Time(stream, "copy out", "", [&] { device_.CopyOut(stream, host, device, bytes); });
  }
  void CopyWithin(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) override {
    profile_.Time(stream, "copy within", "", [&] { device_.CopyWithin(stream, to, from, bytes); });
  }
  void Synchronize(Stream& stream) override { device_.Synchronize(stream); }
  void WaitFor(Stream& waiter, Stream& other) override { device_.WaitFor(waiter, other); }
  void BeginCapture() override { device_.BeginCapture(); }
  std::unique_ptr<kernels::Graph> EndCapture() override { return device_.EndCapture(); }
  void AbandonCapture() override { device_.AbandonCapture(); }
  std::int64_t memory_epoch() const override { return device_.memory_epoch(); }

 private:
  Device& device_;
  OpProfile& profile_;
  KernelTable table_;
};

class TimedBackend : public Backend {
 public:
  TimedBackend(std::unique_ptr<Backend> backend, OpProfile& profile) : backend_(std::move(backend)) {
    inner = &backend_->device(0).kernels();
    for (int d = 0; d < backend_->device_count(); ++d) devices_.push_back(std::make_unique<TimedDevice>(backend_->device(d), profile));
  }

  int device_count() const override { return backend_->device_count(); }
  Device& device(int index) override { return *devices_[static_cast<std::size_t>(index)]; }
  std::byte* AllocateHost(std::size_t bytes, std::string_view what) override { return backend_->AllocateHost(bytes, what); }
  void FreeHost(std::byte* data) override { backend_->FreeHost(data); }
  kernels::CpuStream& host_stream() override { return backend_->host_stream(); }
  const KernelTable& host_kernels() const override { return backend_->host_kernels(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<TimedDevice>> devices_;
};

// --- clocks ------------------------------------------------------------------------------------------------------------

class HostClock : public OpClock {
 public:
  void Begin(Stream&) override { begin_ = std::chrono::steady_clock::now(); }
  void End(Stream&, std::size_t op) override {
    if (seconds_.size() <= op) seconds_.resize(op + 1, 0.0);
    seconds_[op] += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  void Collect(std::vector<double>* seconds) override {
    for (std::size_t i = 0; i < seconds_.size(); ++i) (*seconds)[i] += seconds_[i];
    seconds_.clear();
  }

 private:
  std::chrono::steady_clock::time_point begin_;
  std::vector<double> seconds_;
};

}  // namespace

std::unique_ptr<OpClock> MakeHostClock() { return std::make_unique<HostClock>(); }

OpProfile::OpProfile() {
  LOCKSTEP_CHECK(active == nullptr);
  active = this;
}

OpProfile::~OpProfile() { active = nullptr; }

fast::BackendFactory OpProfile::Backends() {
  return [this](const kernels::DeviceSpec& spec, Profile profile) {
    auto backend = kernels::MakeBackend(spec, profile);
    backend_ = backend.get();
    clock_ = spec.kind == kernels::DeviceSpec::Kind::kCuda ? MakeCudaClock() : MakeHostClock();
    return std::make_unique<TimedBackend>(std::move(backend), *this);
  };
}

void OpProfile::Start() {
  ops_.clear();
  seconds_.clear();
  pending_ = 0;
  running_ = true;
}

std::vector<OpTime> OpProfile::Stop() {
  running_ = false;
  clock_->Collect(&seconds_);
  for (std::size_t i = 0; i < ops_.size(); ++i) ops_[i].seconds = seconds_[i];
  std::stable_sort(ops_.begin(), ops_.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return std::move(ops_);
}

void OpProfile::Begin(Stream& stream) {
  if (running_) clock_->Begin(stream);
}

void OpProfile::End(Stream& stream, const char* op, std::string detail) {
  constexpr std::int64_t kMostPending = 4096;
  if (!running_) return;
  clock_->End(stream, IndexOf(op, std::move(detail)));
  if (++pending_ < kMostPending) return;
  clock_->Collect(&seconds_);
  pending_ = 0;
}

std::size_t OpProfile::IndexOf(const char* op, std::string detail) {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].op != op || ops_[i].detail != detail) continue;
    ++ops_[i].calls;
    return i;
  }
  ops_.push_back({op, std::move(detail), 1, 0.0});
  seconds_.push_back(0.0);
  return ops_.size() - 1;
}

}  // namespace lockstep::bench
