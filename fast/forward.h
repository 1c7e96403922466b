// The layer walk of the fast engine: the same steps in the same order as reference/model.cc, on device memory through the kernel table.
// forward.cc has the step, a layer's frame and the head; forward_attention.cc, forward_experts.cc and forward_trace.cc the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fast/device_weights.h"
#include "fast/expert_lanes.h"
#include "fast/expert_store.h"
#include "fast/kv_state.h"
#include "fast/options.h"
#include "fast/rope_tables.h"
#include "fast/stats.h"
#include "fast/step.h"
#include "fast/step_graphs.h"
#include "fast/step_record.h"
#include "fast/workspace.h"

namespace lockstep::fast {

// What a forward pass works with; all of it outlives the pass.
struct Resources {
  kernels::Backend& backend;
  const Checkpoint& checkpoint;
  const EngineOptions& options;
  std::vector<int> device_of;  // [layer]
  DeviceModel& model;
  ExpertStore& experts;
  KvFactory& kv;
  EngineStats& stats;
};

class Forward {
 public:
  // `max_rows`: rows of the largest step; `logit_rows`: logits computed together.
  Forward(Resources resources, std::int64_t max_rows, std::int64_t logit_rows);

  // Runs the segments' tokens through the model, fills their logits and commits their states. `cancelled` is asked at every layer
  // boundary; once true, nothing is committed and false is returned. Throws InputError, nothing committed, when an activation leaves the
  // range of its format or a score is NaN.
  bool Run(std::span<Segment> segments, const std::function<bool()>& cancelled);

  const TailRule& tail_rule() const { return rule_; }
  std::int64_t max_rows() const { return max_rows_; }

 private:
  // A row of logits: whose it is.
  struct LogitRow {
    Segment* segment;
    std::int64_t position;
    std::int64_t row() const { return segment->RowOf(position); }
  };

  // The step.
  void Abandon(std::span<Segment> segments);
  bool RunOnce(std::span<Segment> segments, const std::function<bool()>& cancelled);
  bool RunLayers(std::span<Segment> segments, const std::function<bool()>& cancelled);
  void Begin(std::span<Segment> segments);
  void ListLogitRows(std::span<Segment> segments);
  bool HasFixedShape(std::span<const Segment> segments, std::int64_t rows) const;
  void Embed();
  void FrontOfDecoder(std::span<Segment> segments);
  void MoveToDeviceOf(int layer, const Ranges& rows);
  void PoisonWorkspace(int device, std::int64_t row_count);

  // A layer: kv rows enter, out rows leave.
  void RunLayer(int layer, std::span<Segment> segments, bool compress);
  void EngramReadOut(int layer, const Ranges& rows);
  void EnterSite(const DeviceHc& site, const float* norm, const Ranges& rows);
  void LeaveSite(const Ranges& rows);
  // What a site has left to the next one to do, for whoever else reads the streams.
  void FinishLeaving();
  void SumExperts(const Ranges& rows);
  kernels::CombineArgs SumArgs(RowRange range);
  kernels::HcExpandArgs LeaveArgs(RowRange range);
  kernels::HcMixArgs MixArgs(const DeviceHc& site, RowRange range);

  // Attention.
  // A compressor at work: what the step's rows are projected to, and where the latents of the entries that they complete go.
  struct Pooling {
    const DeviceCompressor& compressor;
    std::int64_t width;  // of a latent
    float *kv, *gate;
    std::uint16_t* latent;
    const StepArray<kernels::PoolEntry>& pool;
    const StepArray<float*>& history_to;
  };
  Pooling EntryPooling(int layer);
  Pooling IndexKeyPooling(int layer);
  void ProjectInput(int layer, bool compress);
  void AddCompressorLinears(int layer);
  void AddPoolingLinears(const Pooling& pooling);
  void AppendWindow(int layer);
  void AppendCompressed(int layer, std::span<Segment> segments);
  void ProjectIndexKeys(int layer, kernels::PooledRowsArgs* entries);
  kernels::PooledRowsArgs PoolArgs(int layer, const Pooling& pooling, const DoubleRing* history);
  kernels::NormRopePackArgs PackArgs(int layer, std::uint16_t* x, int width, const float* norm, const kernels::RowFormat& format, std::byte* const* to);
  // Runs what the functions above have left in inputs_.
  void RunInputs();
  void AttendTile(int layer, RowRange tile);
  void MakeQueries(int layer, RowRange tile);
  void ProjectGroups(const DeviceLayer& w, std::int64_t tile_rows);
  void SelectEntries(int layer, RowRange tile);

  // Experts.
  void FeedForward(int layer, const Ranges& rows);
  void Route(int layer, const Ranges& rows, bool shared);
  kernels::RouterArgs ChoiceArgs(int layer, RowRange range);
  const kernels::ExpertTable* DeviceJobs(int layer, const Ranges& rows);
  kernels::PairGroupsArgs PairArgs(int layer, const Ranges& rows, bool shared);
  void RunExpertsOfDevice(int layer, const kernels::ExpertTable& table, const Ranges& rows);
  void RunPlannedExperts(int layer, const Ranges& rows);
  void RunSharedExpert(int layer, const Ranges& rows);
  kernels::ExpertFfnArgs ExpertArgs(int layer, const Ranges& rows);
  PairArrays DevicePairs(const Ranges& rows);

  // V4.1's exact tail.
  void StoreStash(Segment& segment);
  void RestoreStash(Segment& segment);
  void CopyStash(Segment& segment, std::int64_t begin, std::int64_t end, bool store);

  // The head.
  void Head(std::span<Segment> segments);
  void HeadRows(RowRange rows, float* logits);
  void EndStep();
  void DescribeNext(std::span<const Segment> segments);
  void DeliverRows(std::size_t begin, std::size_t end);
  void DeliverDraws();

  // Calls with the pieces that every kernel call here needs.
  void Linear(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows, std::uint16_t* y,
              std::int64_t y_stride, float* y_fp32 = nullptr);
  // Adds to the set that RunLinears runs.
  void AddLinear(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows, std::uint16_t* y,
                 std::int64_t y_stride, float* y_fp32 = nullptr);
  // `norm`: of the rows that all of them read, first; nothing where it has no rows.
  void RunLinears(const kernels::RmsNormArgs& norm = {});
  kernels::LinearArgs LinearArgsOf(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows, std::uint16_t* y,
                                   std::int64_t y_stride, float* y_fp32);
  kernels::RmsNormArgs NormArgs(const std::uint16_t* x, std::int64_t rows, std::int64_t n, const float* weight, std::uint16_t* y) const;
  kernels::RopeArgs TurnArgs(int layer, std::uint16_t* x, std::int64_t rows, int heads, int width, const std::int64_t* positions) const;
  const float* RopeTable(int layer) const;
  template <typename Work>
  void Enqueue(const Work& work) {
    graphs_.Enqueue(device(), work);
  }
  // Enqueues a copy to host memory.
  template <typename T>
  void CopyOut(const T* data, std::int64_t count, T* host) {
    device().CopyOut(stream(), reinterpret_cast<std::byte*>(host), reinterpret_cast<const std::byte*>(data), static_cast<std::size_t>(count) * sizeof(T));
  }
  // The same, and waits.
  template <typename T>
  void Download(const T* data, std::int64_t count, std::vector<T>* values) {
    values->resize(static_cast<std::size_t>(count));
    CopyOut(data, count, values->data());
    device().Synchronize(stream());
  }

  // Dumps. Steps that are dumped are not captured.
  void TraceRows(std::string_view step, int layer, const std::uint16_t* rows, std::int64_t width, const Ranges& ranges);
  // `first`: values of the range's first row.
  void TraceRange(std::string_view step, int layer, const std::uint16_t* first, std::int64_t width, RowRange range);
  void TraceBits(std::string_view step, int layer, std::int64_t position, std::span<const std::uint16_t> bits);
  void TraceWindow(int layer, RowRange range, const std::byte* packed);
  void TraceEntries(std::string_view step, int layer, std::span<Segment> segments, const kernels::RowFormat& format);
  void TraceRouting(int layer, const Ranges& rows);
  void KeepScores(int layer, RowRange tile, kernels::IndexSelectArgs* args, kernels::DeviceArray<float>* scores);
  void TraceSelection(int layer, RowRange tile, const kernels::IndexSelectArgs& args);
  void TraceCoefficients(std::string_view step, int layer, const Ranges& ranges);
  void TracePacked(std::string_view step, int layer, const kernels::UnpackRowsArgs& rows, const std::vector<std::int64_t>& positions);

  Resources r_;
  const ModelConfig& config_;
  TailRule rule_;
  std::int64_t max_rows_, tile_rows_, logit_rows_;
  std::vector<std::unique_ptr<Workspace>> workspaces_;  // [device]
  std::vector<std::byte*> window_rows_D_;
  std::vector<std::unique_ptr<RopeTables>> rope_;
  StepRecord record_;
  StepGraphs graphs_;
  ExpertLanes lanes_;

  // Kept, so that steady state allocates nothing.
  std::vector<float> pre_rows_;
  std::vector<std::uint16_t> stream_rows_;
  std::vector<LogitRow> logit_row_list_;
  std::vector<Segment> next_;                // the segments of the step after the running one
  std::vector<kernels::SamplingRow> draws_;  // one for each of these, or none
  std::vector<kernels::LinearArgs> linear_set_;
  kernels::AttentionInputsArgs inputs_;  // of the running layer, those that are not there yet
  kernels::HostArray<float> host_logits_;
  kernels::HostArray<std::byte> host_pairs_;
  StepShape shape_;

  // Of the running step.
  int device_index_ = 0;
  int layer_ = 0;
  std::int64_t position_bound_ = 0;  // no row sees more positions
  kernels::SinkhornArgs mix_later_;  // of the site that was entered last
  const Ranges* leaving_ = nullptr;  // rows whose site's output is not in their streams yet: the next site takes it along
  const std::uint16_t* shared_TE_ = nullptr;  // outputs of the shared expert, where the site's output is not yet their sum with the picks'

  std::int64_t rows() const { return static_cast<std::int64_t>(record_.positions().size()); }
  kernels::Device& device() { return r_.backend.device(device_index_); }
  kernels::Stream& stream() { return device().compute(); }
  const kernels::KernelTable& kernels() { return device().kernels(); }
  Workspace& ws() { return *workspaces_[static_cast<std::size_t>(device_index_)]; }
  const DeviceRecord& here() const { return record_.device(device_index_); }
  const DeviceLayer& weights(int layer) const { return r_.model.layers[static_cast<std::size_t>(layer)]; }
};

}  // namespace lockstep::fast
