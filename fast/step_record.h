// What a step's kernels have to be told about its sequences: made on the host once for all layers, and moved to each device in one copy; and what they
// tell the host, which another copy brings back. Both copies are work of the step, so that a captured one has them in it.
// Everything that depends on positions is in here, so that a captured step serves every step of its shape.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fast/engram_table.h"
#include "fast/kv_state.h"
#include "fast/step.h"
#include "kernels/attention/attention.h"
#include "kernels/compressor/compressor.h"
#include "kernels/device/backend.h"
#include "kernels/index_select/index_select.h"
#include "kernels/sampling/sampling.h"

namespace lockstep::fast {

using Ranges = std::vector<RowRange>;

// An array of a record, in both memories.
template <typename T>
struct StepArray {
  T* host = nullptr;
  T* device = nullptr;
  std::int64_t size = 0;

  std::span<T> values() const { return {host, static_cast<std::size_t>(size)}; }
};

// The memory of a record: arrays laid out one after the other, the same way in every step of a shape.
class StepMemory {
 public:
  StepMemory(kernels::Backend& backend, kernels::Device& device, std::size_t bytes);

  // Forgets all arrays. The host waits until the device has read them.
  void Clear();
  // Forgets all arrays, and adds the next ones outside of the memory that the device reads; no more than there are now.
  void BeginDraft();
  // Moves them there. The device has read what was there before.
  void UseDraft();
  template <typename T>
  StepArray<T> Add(std::int64_t count) {
    const std::size_t at = Take(static_cast<std::size_t>(count) * sizeof(T));
    return {reinterpret_cast<T*>(to_ + at), reinterpret_cast<T*>(device_.data() + at), count};
  }
  std::size_t used() const { return used_; }
  // Enqueues the copy of all arrays.
  void Upload();
  // Enqueues the copy back of what lies from byte `begin` on.
  void Download(std::size_t begin);

  static constexpr std::size_t kAlignment = 64;

 private:
  std::size_t Take(std::size_t bytes);

  kernels::Device* on_;
  kernels::HostArray<std::byte> host_;
  kernels::DeviceArray<std::byte> device_;
  std::vector<std::byte> draft_;
  std::byte* to_ = nullptr;  // where arrays are added
  std::size_t used_ = 0;
};

// A layer's part. Arrays are by row of the step unless they say otherwise; those that the layer has no use for are empty.
struct LayerRecord {
  Ranges kv_rows, out_rows;  // rows that enter the layer, and that leave it
  StepArray<kernels::AttentionRow> attention;
  StepArray<std::byte*> window_to;            // slot in the window ring; null: later steps do not need the row
  StepArray<std::uint16_t> engram;            // table rows
  // Index sources.
  StepArray<kernels::IndexRow> index;
  StepArray<std::int32_t> selected_count;     // out: -1 where a score is NaN
  // Kv sources, by entry. In a step of fixed shape there may be more than `completed`: those pool nothing and are stored nowhere.
  std::int64_t entries = 0, completed = 0;
  StepArray<kernels::PoolEntry> pool, index_pool;
  StepArray<std::int64_t> entry_position;
  StepArray<std::byte*> compressed_to, index_key_to;
  StepArray<float*> history_to, index_history_to;  // by row
};

// A device's part.
struct DeviceRecord {
  StepArray<std::int32_t> ids;
  StepArray<std::int64_t> positions;
  StepArray<float> first_pre;       // [T][S] coefficients that read the embedding
  StepArray<kernels::SamplingRow> draws;  // on the head's device: how a token is drawn from each row of logits, if any is
  std::size_t results = 0;          // where what the kernels write begins: drawn tokens, selected counts and the flags
  StepArray<std::int32_t> drawn;    // out, by row of logits
  StepArray<std::int32_t> overflow;  // [layers + 1], out: 1 where an activation left the fp16 range; last: the head
  StepArray<std::int32_t> router_nan;  // [layers], out: 1 where a router score is NaN
};

class StepRecord {
 public:
  StepRecord(kernels::Backend& backend, const Checkpoint& checkpoint, const TailRule& rule, KvFactory& kv, const std::vector<int>& device_of,
             std::int64_t max_rows);

  // Fills the record of a step whose segments are planned and have their pages, and opens the rings for writing. `draws`: how a token is drawn from
  // each row of logits, or nothing. `window_rows_D`: where each device packs the window rows of the running layer. `fixed_shape`: the layout depends
  // on the numbers of rows and draws only. True if it was described ahead.
  bool Describe(std::span<Segment> segments, std::int64_t rows, bool fixed_shape, std::span<const kernels::SamplingRow> draws,
                std::span<std::byte* const> window_rows_D);
  // Prepares the record of the step after the running one, of fixed shape, while that runs: all but the tokens and how they are drawn. The next Describe
  // takes it if its segments are these.
  void DescribeAhead(std::span<Segment> segments, std::int64_t rows, std::size_t draws, std::span<std::byte* const> window_rows_D);
  // Forgets what was described ahead: the running step will not be committed.
  void DropAhead() { expected_.clear(); }
  // Enqueues the copy of a device's part to it.
  void Upload(int device) { memory_D_[static_cast<std::size_t>(device)]->Upload(); }
  // Enqueues the copy back of what the device's kernels wrote; the host must synchronize before it looks.
  void DownloadResults(int device);
  // Throws InputError naming the first layer, and the position where there is one, at which a score is NaN or an activation left its range.
  void CheckResults() const;

  std::span<const std::int64_t> positions() const { return sheet_.positions; }
  const Ranges& new_rows() const { return sheet_.new_rows; }
  const LayerRecord& layer(int l) const { return sheet_.layers[static_cast<std::size_t>(l)]; }
  const DeviceRecord& device(int d) const { return sheet_.devices[static_cast<std::size_t>(d)]; }

 private:
  // What is known of a step.
  struct Sheet {
    std::vector<DeviceRecord> devices;
    std::vector<LayerRecord> layers;
    std::vector<std::int64_t> positions;  // [rows]
    Ranges new_rows;
  };
  // What a description depends on, but for tokens.
  struct SegmentKey {
    std::uint64_t state = 0;
    std::int64_t begin = 0, end = 0, prompt_end = 0, last_rows = 0, first_position = 0;
    bool operator==(const SegmentKey&) const = default;
  };
  static SegmentKey KeyOf(const Segment& segment);
  bool IsExpected(std::span<const Segment> segments, bool fixed_shape, std::size_t draws) const;

  template <typename Begin>
  static void RowsFrom(std::span<Segment> segments, Begin begin, Ranges* ranges);
  std::int64_t FirstKvPosition(int layer, const Segment& segment) const;
  std::int64_t FirstOutPosition(int layer, const Segment& segment) const;
  void PlanRows(std::span<Segment> segments, std::int64_t rows);
  void DescribeInputs(std::span<Segment> segments, std::int64_t rows, bool fixed_shape, std::size_t draws, std::span<std::byte* const> window_rows_D);
  void DescribeRows(DeviceRecord& record, StepMemory& memory);
  void FillTokens(std::span<Segment> segments, std::span<const kernels::SamplingRow> draws);
  void AddResults(std::int64_t rows, std::int64_t draws);
  void DescribeAttention(int layer, std::span<Segment> segments, std::byte* window_rows);
  void DescribeWindowStores(int layer, const Segment& segment);
  void FillEngram(int layer, std::span<Segment> segments);
  void GatherEngram(int index, const Segment& s, std::int64_t begin, std::uint16_t* rows);
  void DescribeEntries(int layer, std::span<Segment> segments, bool fixed_shape);
  void DescribePool(int layer, const Segment& segment, DoubleRing* history, bool overlap, std::int64_t first_entry, kernels::PoolEntry* entries,
                    float** slots_T);
  std::size_t Bytes(int device, std::int64_t rows) const;
  StepMemory& MemoryOf(int layer) { return *memory_D_[static_cast<std::size_t>(device_of_[static_cast<std::size_t>(layer)])]; }
  std::int64_t EngramWidth() const { return std::int64_t{config_.engram.columns()} * config_.engram.head_dim; }

  const ModelConfig& config_;
  const TailRule& rule_;
  KvFactory& kv_;
  std::vector<int> device_of_;
  kernels::CpuStream& host_stream_;
  EngramTable engram_;
  std::vector<std::unique_ptr<StepMemory>> memory_D_;
  Sheet sheet_, ahead_;
  std::vector<SegmentKey> expected_;  // whose step ahead_ is; none: nobody's
  std::size_t expected_draws_ = 0;
};

}  // namespace lockstep::fast
