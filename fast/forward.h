// The layer walk of the fast engine: the same steps in the same order as reference/model.cc, on device memory through the kernel table.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fast/device_weights.h"
#include "fast/engram_table.h"
#include "fast/expert_lanes.h"
#include "fast/expert_store.h"
#include "fast/kv_state.h"
#include "fast/options.h"
#include "fast/rope_tables.h"
#include "fast/stats.h"
#include "fast/step.h"
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
  using Ranges = std::vector<RowRange>;

  // The step.
  bool RunLayers(std::span<Segment> segments, const std::function<bool()>& cancelled);
  void Begin(std::span<Segment> segments);
  void MoveToDeviceOf(int layer, const Ranges& rows);
  void PoisonWorkspace(int device, std::int64_t rows);
  template <typename FirstPosition>
  static void RowsFrom(std::span<Segment> segments, FirstPosition begin, Ranges* ranges);
  static std::int64_t FirstPositionIn(const Ranges& ranges, const Segment& segment);

  // A layer: kv rows enter, out rows leave.
  void RunLayer(int layer, std::span<Segment> segments, const Ranges& kv_rows, const Ranges& out_rows, bool compress);
  void EngramReadOut(int layer, std::span<Segment> segments, const Ranges& rows);
  void EnterSite(const DeviceHc& site, const float* norm, const Ranges& rows);
  void LeaveSite(const Ranges& rows);
  void AppendWindow(int layer, std::span<Segment> segments, const Ranges& rows);
  void AppendCompressed(int layer, Segment& segment);
  void PoolGroups(int layer, const DeviceCompressor& compressor, std::int64_t width, DoubleRing* history, Segment& segment);
  void AppendIndexKeys(int layer, Segment& segment, std::int64_t first_entry, std::int64_t entries);
  void DescribeRows(int layer, std::span<Segment> segments);
  void AttendTile(int layer, RowRange tile);
  void SelectEntries(int layer, RowRange tile);
  void StoreWindows(int layer, std::span<Segment> segments);
  void FeedForward(int layer, const Ranges& rows);
  void RunExperts(int layer, const Ranges& rows);
  void GroupPairs(int layer, const Ranges& rows);

  // V4.1's exact tail.
  void StoreStash(Segment& segment);
  void RestoreStash(Segment& segment);
  void CopyStash(Segment& segment, std::int64_t begin, std::int64_t end, bool store);

  void Head(std::span<Segment> segments);
  void CheckFlags();

  // Calls with the pieces that every kernel call here needs.
  void Linear(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows, std::uint16_t* y,
              std::int64_t y_stride, float* y_fp32 = nullptr);
  void Norm(const std::uint16_t* x, std::int64_t rows, std::int64_t n, const float* weight, std::uint16_t* y);
  void Rope(int layer, std::uint16_t* x, std::int64_t rows, int heads, int width, const std::int64_t* positions, bool inverse);
  template <typename T>
  void Upload(kernels::DeviceArray<T>& array, std::int64_t begin, const std::vector<T>& values);
  template <typename T>
  void Download(const T* data, std::int64_t count, std::vector<T>* values);

  // Dumps.
  void TraceRows(std::string_view step, int layer, const std::uint16_t* rows, std::int64_t width, const Ranges& ranges);
  // `first`: values of the range's first row.
  void TraceRange(std::string_view step, int layer, const std::uint16_t* first, std::int64_t width, RowRange range);
  void TraceBits(std::string_view step, int layer, std::int64_t position, std::span<const std::uint16_t> bits);
  void TraceRouting(int layer, const Ranges& rows);
  void TraceUnpacked(std::string_view step, int layer, const std::uint16_t* rows, std::int64_t width, const std::vector<std::int64_t>& positions);
  void KeepScores(RowRange tile, kernels::IndexSelectArgs* args, kernels::DeviceArray<float>* scores);
  void TraceSelection(int layer, RowRange tile, const kernels::IndexSelectArgs& args);
  void TraceCoefficients(std::string_view step, int layer, const Ranges& ranges);
  void TracePacked(std::string_view step, int layer, const kernels::UnpackRowsArgs& rows, const std::vector<std::int64_t>& positions);

  Resources r_;
  const ModelConfig& config_;
  TailRule rule_;
  std::int64_t max_rows_, logit_rows_;
  std::vector<std::unique_ptr<Workspace>> workspaces_;  // [device]
  std::vector<std::unique_ptr<RopeTables>> rope_;
  EngramTable engram_;
  ExpertLanes lanes_;

  // Host side of the device arrays; kept, so that steady state allocates nothing.
  struct HostBuffers {
    std::vector<std::int32_t> ids, overflow, recent_ids, counts, experts_TK, pair_of_TK;
    std::vector<std::int64_t> entry_positions, next_X;
    std::vector<float> first_stream, pre_rows, weights_TK, logits;
    std::vector<std::uint16_t> stream_rows, table_rows;
    std::vector<kernels::AttentionRow> attention_rows;
    std::vector<kernels::IndexRow> index_rows;
  };
  HostBuffers host_;
  ExpertBatch batch_;

  // Of the running step.
  int device_index_ = 0;
  int layer_ = 0;
  std::vector<std::int64_t> positions_;  // [rows]
  Ranges new_rows_, kv_rows_, out_rows_;
  std::vector<std::int64_t> kv_begin_;  // [segment], first position of the running layer's window rows

  kernels::Device& device() { return r_.backend.device(device_index_); }
  kernels::Stream& stream() { return device().compute(); }
  const kernels::KernelTable& kernels() { return device().kernels(); }
  Workspace& ws() { return *workspaces_[static_cast<std::size_t>(device_index_)]; }
};

}  // namespace lockstep::fast
