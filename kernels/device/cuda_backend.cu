// Real devices: memory, streams and the CUDA kernel table behind the device seam.
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention_inputs/attention_inputs_cuda.h"
#include "kernels/compressor/compressor_cuda.h"
#include "kernels/device/backend.h"
#include "kernels/device/cuda_profile.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/device/graph_copy.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/profile_kernel.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/expert_ffn/expert_ffn_cuda.h"
#include "kernels/index_select/index_select_cuda.h"
#include "kernels/kv_rows/kv_rows_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/pair_groups/pair_groups_cuda.h"
#include "kernels/random_exl3/random_exl3_cuda.h"
#include "kernels/router/router_cuda.h"
#include "kernels/sampling/sampling_cuda.h"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

// Compiled like every kernel here, to ask for which architecture that was.
__global__ void CodeKernel() {}

// Family H is what the tensor cores make of it: the kernels are the same, the bits are the profile's.
void NameContracts(Profile profile, KernelTable* table) {
  static constexpr std::string_view kLinear[] = LOCKSTEP_PROFILE_CONTRACTS("linear", "+I+F");
  static constexpr std::string_view kExpertFfn[] = LOCKSTEP_PROFILE_CONTRACTS("expert_ffn", "+I+F");
  static constexpr std::string_view kIndexSelect[] = LOCKSTEP_PROFILE_CONTRACTS("index_select", "+I");
  static constexpr std::string_view kAttention[] = LOCKSTEP_PROFILE_CONTRACTS("attention", "");
  const int i = static_cast<int>(profile);
  table->linear.contract = table->linear_set.contract = kLinear[i];
  table->expert_ffn.contract = kExpertFfn[i];
  table->index_select.contract = kIndexSelect[i];
  table->attention.contract = kAttention[i];
}

KernelTable MakeCudaTable(Profile profile) {
  KernelTable table;
  table.embed = CudaEmbed();
  table.rms_norm = CudaRmsNorm();
  table.rope = CudaRope();
  table.norm_rope = CudaNormRope();
  table.hc_mix = CudaHcMix();
  table.sinkhorn = CudaSinkhorn();
  table.hc_collapse_norm = CudaHcCollapseNorm();
  table.hc_expand = CudaHcExpand();
  table.hc_site = CudaHcSite();
  table.linear = CudaLinear();
  table.linear_set = CudaLinearSet();
  table.pack_rows = CudaPackRows();
  table.norm_rope_pack = CudaNormRopePack();
  table.unpack_rows = CudaUnpackRows();
  table.compress = CudaCompress();
  table.store_history = CudaStoreHistory();
  table.attention_inputs = CudaAttentionInputs();
  table.index_select = CudaIndexSelect();
  table.attention = CudaAttention();
  table.router = CudaRouter();
  table.pair_groups = CudaPairGroups();
  table.route = CudaRoute();
  table.expert_ffn = CudaExpertFfn();
  table.device_job_rows = 64;  // they decode a weight once for eight rows of an expert
  table.combine = CudaCombine();
  table.engram_gate = CudaEngramGate();
  table.sample = CudaSample();
  table.random_exl3 = CudaRandomExl3();
  NameContracts(profile, &table);
  return table;
}

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda(error, "graph of a step");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  void Launch() override { CheckCuda(cudaGraphLaunch(exec_, stream_), "graph of a step"); }

 private:
  cudaGraphExec_t exec_ = nullptr;
  cudaStream_t stream_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, std::size_t limit) : index_(index), table_(MakeCudaTable(CudaProfile(index))), compute_(index), copy_(index) {
    CheckCuda(cudaGetDeviceProperties(&properties_, index), "device properties");
    std::size_t free = 0, total = 0;
    CheckCuda(cudaMemGetInfo(&free, &total), "device memory");
    limit_ = limit > 0 ? std::min(limit, free) : free;
    CheckCuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
  }

  std::string Description() const override {
    return "cuda:" + std::to_string(index_) + " " + properties_.name + " sm_" + std::to_string(properties_.major) + std::to_string(properties_.minor) +
           " profile=" + std::string(NameOf(CudaProfile(index_)));
  }
  const KernelTable& kernels() const override { return table_; }
  Stream& compute() override { return compute_; }
  Stream& copy() override { return copy_; }

  std::byte* Allocate(std::size_t bytes, std::string_view what) override {
    if (used_ + bytes > limit_) {
      throw InputError(Description() + ": out of device memory: " + std::string(what) + " needs " + std::to_string(bytes) + " bytes, " +
                       std::to_string(limit_ - used_) + " of " + std::to_string(limit_) + " are free; " +
                       "end what else runs on it, raise mem= in --device, or lower --chunk");
    }
    Select();
    void* data = nullptr;
    CheckCuda(cudaMalloc(&data, bytes > 0 ? bytes : 1), std::string(what).c_str());
    allocations_[static_cast<std::byte*>(data)] = bytes;
    used_ += bytes;
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data) override {
    const auto found = allocations_.find(data);
    LOCKSTEP_CHECK(found != allocations_.end());
    used_ -= found->second;
    allocations_.erase(found);
    Select();
    cudaFree(data);
  }
  std::size_t memory_limit() const override { return limit_; }
  std::size_t memory_used() const override { return used_; }

  void CopyIn(Stream& stream, std::byte* device, const std::byte* host, std::size_t bytes) override {
    Copy(stream, device, host, bytes, cudaMemcpyHostToDevice);
  }
  void CopyOut(Stream& stream, std::byte* host, const std::byte* device, std::size_t bytes) override {
    Copy(stream, host, device, bytes, cudaMemcpyDeviceToHost);
  }
  void CopyWithin(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) override {
    Copy(stream, to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  void Synchronize(Stream& stream) override { CheckCuda(cudaStreamSynchronize(AsCuda(stream).handle()), "device work"); }
  void WaitFor(Stream& waiter, Stream& other) override {
    CheckCuda(cudaEventRecord(event_, AsCuda(other).handle()), "event");
    CheckCuda(cudaStreamWaitEvent(AsCuda(waiter).handle(), event_, 0), "event");
  }

  void BeginCapture() override {
    Select();
    CheckCuda(cudaStreamBeginCapture(compute_.handle(), cudaStreamCaptureModeThreadLocal), "graph capture");
    capturing_ = true;
  }
  std::unique_ptr<Graph> EndCapture() override {
    cudaGraph_t graph = nullptr;
    capturing_ = false;
    CheckCuda(cudaStreamEndCapture(compute_.handle(), &graph), "graph capture");
    return std::make_unique<CudaGraph>(graph, compute_.handle());
  }
  void AbandonCapture() override {
    cudaGraph_t graph = nullptr;
    capturing_ = false;
    cudaStreamEndCapture(compute_.handle(), &graph);  // an error says that there is nothing to destroy
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  std::int64_t memory_epoch() const override { return compute_.epoch(); }
  void KeepOldMemory(bool keeps) override { compute_.KeepOldScratch(keeps); }

 private:
  void Select() { CheckCuda(cudaSetDevice(index_), "device selection"); }
  void Copy(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (capturing_ && &stream == &compute_ && GraphCopy(compute_, to, from, bytes)) return;
    Select();
    CheckCuda(cudaMemcpyAsync(to, from, bytes, kind, AsCuda(stream).handle()), "copy");
  }

  int index_;
  cudaDeviceProp properties_{};
  std::size_t limit_ = 0, used_ = 0;
  KernelTable table_;
  CudaStream compute_, copy_;
  cudaEvent_t event_ = nullptr;
  bool capturing_ = false;
  std::map<std::byte*, std::size_t> allocations_;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(const DeviceSpec& spec, Profile profile) : host_table_(MakeCpuTable(BestIsa(), profile)) {
    for (int index : spec.indices) devices_.push_back(std::make_unique<CudaDevice>(index, spec.memory_limit));
    host_stream_ = MakeCpuStream(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  }

  int device_count() const override { return static_cast<int>(devices_.size()); }
  Device& device(int index) override { return *devices_[static_cast<std::size_t>(index)]; }
  std::byte* AllocateHost(std::size_t bytes, std::string_view what) override {
    void* data = nullptr;
    CheckCuda(cudaHostAlloc(&data, bytes > 0 ? bytes : 1, cudaHostAllocPortable), std::string(what).c_str());
    return static_cast<std::byte*>(data);
  }
  void FreeHost(std::byte* data) override { cudaFreeHost(data); }
  CpuStream& host_stream() override { return *host_stream_; }
  const KernelTable& host_kernels() const override { return host_table_; }

 private:
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::unique_ptr<CpuStream> host_stream_;
  KernelTable host_table_;
};

}  // namespace

CudaStream::CudaStream(int device) : device_(device) {
  CheckCuda(cudaSetDevice(device), "device selection");
  CheckCuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "stream");
  cudaFuncAttributes code;
  CheckCuda(cudaFuncGetAttributes(&code, CodeKernel), "code for this device");
  overlaps_ = code.ptxVersion >= 90;
  CheckCuda(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device), "device properties");
  CheckCuda(cudaDeviceGetAttribute(&shared_bytes_, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device), "device properties");
}

void AllowShared(const void* kernel, int device) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  const std::lock_guard lock(mutex);
  if (!allowed.insert({kernel, device}).second) return;
  int bytes = 0;
  CheckCuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "device properties");
  cudaFuncAttributes attributes;
  CheckCuda(cudaFuncGetAttributes(&attributes, kernel), "kernel attributes");
  bytes -= static_cast<int>(attributes.sharedSizeBytes);
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory of a kernel");
}

CudaStream::~CudaStream() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(handle_);
  for (std::byte* data : scratch_) cudaFree(data);
  for (std::byte* data : old_scratch_) cudaFree(data);
  cudaStreamDestroy(handle_);
}

bool CudaStream::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CheckCuda(cudaStreamIsCapturing(handle_, &status), "graph capture");
  return status != cudaStreamCaptureStatusNone;
}

std::byte* CudaStream::Scratch(int slot, std::size_t bytes) {
  if (bytes_[slot] >= bytes) return scratch_[slot];
  if (capturing()) throw NotCapturable();
  CheckCuda(cudaSetDevice(device_), "device selection");
  if (std::byte* old = std::exchange(scratch_[slot], nullptr)) {
    ++epoch_;
    bytes_[slot] = 0;
    old_scratch_.push_back(old);
    if (!keeps_old_) KeepOldScratch(false);
  }
  const std::size_t grown = bytes + bytes / 2;
  void* data = nullptr;
  CheckCuda(cudaMalloc(&data, grown), "kernel scratch");
  scratch_[slot] = static_cast<std::byte*>(data);
  bytes_[slot] = grown;
  return scratch_[slot];
}

void CudaStream::KeepOldScratch(bool keeps) {
  keeps_old_ = keeps;
  if (old_scratch_.empty()) return;
  CheckCuda(cudaSetDevice(device_), "device selection");
  CheckCuda(cudaStreamSynchronize(handle_), "device work");
  for (std::byte* data : old_scratch_) cudaFree(data);
  old_scratch_.clear();
}

std::byte* CudaStream::ZeroedScratch(std::size_t bytes, Zeroed which) {
  const int slot = kSlots - (which == Zeroed::kRows ? 1 : 2);
  const std::size_t before = bytes_[slot];
  std::byte* data = Scratch(slot, bytes);
  // By size: memory that has grown may lie where the old one did, and its new part holds what others left.
  if (bytes_[slot] != before) CheckCuda(cudaMemsetAsync(data, 0, bytes_[slot], handle_), "kernel scratch");
  return data;
}

std::byte* CudaStream::Upload(int slot, const void* host, std::size_t bytes) {
  if (capturing()) throw NotCapturable();
  std::byte* data = Scratch(slot, bytes);
  // From pageable memory the call returns when the bytes have been taken.
  CheckCuda(cudaMemcpyAsync(data, host, bytes, cudaMemcpyHostToDevice, handle_), "copy");
  return data;
}

bool BuiltWithCuda() { return true; }

Profile CudaProfile(int index) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || index >= count) return Profile::kSm90;
  CheckCuda(cudaSetDevice(index), "device selection");
  int major = 0, minor = 0;
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "device properties");
  CheckCuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "device properties");
  cudaFuncAttributes code;
  CheckCuda(cudaFuncGetAttributes(&code, CodeKernel), "code for this device");
  return ProfileOfCode(code.ptxVersion, 10 * major + minor);
}

std::unique_ptr<Backend> MakeCudaBackend(const DeviceSpec& spec, Profile profile) {
  int count = 0;
  CheckCuda(cudaGetDeviceCount(&count), "devices");
  for (int index : spec.indices) {
    if (index >= count) throw InputError("--device cuda:" + std::to_string(index) + ": this machine has " + std::to_string(count) + " CUDA devices");
    cudaDeviceProp properties;
    CheckCuda(cudaGetDeviceProperties(&properties, index), "device properties");
    const Profile computed = CudaProfile(index);
    if (profile != computed) {
      throw InputError("--profile " + std::string(NameOf(profile)) + ": cuda:" + std::to_string(index) + ", " + properties.name +
                       ", computes profile " + std::string(NameOf(computed)) + " with this build");
    }
  }
  return std::make_unique<CudaBackend>(spec, profile);
}

}  // namespace lockstep::kernels
