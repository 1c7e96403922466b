#include "fast/step_record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>

#include "model/error.h"

namespace lockstep::fast {

using kernels::AttentionRow;
using kernels::IndexRow;
using kernels::PoolEntry;

// --- memory ----------------------------------------------------------------------------------------------------------

StepMemory::StepMemory(kernels::Backend& backend, kernels::Device& device, std::size_t bytes)
    : on_(&device), host_(backend, bytes, "step record"), device_(device, bytes, "step record") {}

void StepMemory::Clear() {
  on_->Synchronize(on_->compute());
  to_ = host_.data();
  used_ = 0;
}

void StepMemory::BeginDraft() {
  if (draft_.size() < used_) draft_.resize(used_);
  to_ = draft_.data();
  used_ = 0;
}

void StepMemory::UseDraft() {
  std::memcpy(host_.data(), draft_.data(), used_);
  to_ = host_.data();
}

std::size_t StepMemory::Take(std::size_t bytes) {
  const std::size_t at = used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  LOCKSTEP_CHECK(used_ <= (to_ == host_.data() ? host_.size() : draft_.size()));
  return at;
}

void StepMemory::Upload() { on_->CopyIn(on_->compute(), device_.data(), host_.data(), used_); }

void StepMemory::Download(std::size_t begin) {
  on_->CopyOut(on_->compute(), host_.data() + begin, device_.data() + begin, used_ - begin);
}

// --- rows ------------------------------------------------------------------------------------------------------------

StepRecord::StepRecord(kernels::Backend& backend, const Checkpoint& checkpoint, const TailRule& rule, KvFactory& kv,
                       const std::vector<int>& device_of, std::int64_t max_rows)
    : config_(checkpoint.config), rule_(rule), kv_(kv), device_of_(device_of), host_stream_(backend.host_stream()), engram_(checkpoint) {
  for (Sheet* sheet : {&sheet_, &ahead_}) {
    sheet->layers.resize(static_cast<std::size_t>(config_.num_layers));
    sheet->devices.resize(static_cast<std::size_t>(backend.device_count()));
  }
  for (int d = 0; d < backend.device_count(); ++d) memory_D_.push_back(std::make_unique<StepMemory>(backend, backend.device(d), Bytes(d, max_rows)));
}

// What Describe takes at most.
std::size_t StepRecord::Bytes(int device, std::int64_t rows) const {
  constexpr std::size_t kArraysALayer = 12;
  const auto of = [rows](std::size_t bytes_a_row) { return static_cast<std::size_t>(rows) * bytes_a_row; };
  const std::size_t flags = 2 * static_cast<std::size_t>(config_.num_layers) + 1;
  std::size_t bytes = of(sizeof(std::int32_t) + sizeof(std::int64_t) + static_cast<std::size_t>(config_.hc_mult) * sizeof(float));
  bytes += of(sizeof(kernels::SamplingRow) + sizeof(std::int32_t));
  bytes += flags * sizeof(std::int32_t) + kArraysALayer * StepMemory::kAlignment;
  for (int l = 0; l < config_.num_layers; ++l) {
    if (device_of_[static_cast<std::size_t>(l)] != device) continue;
    bytes += of(sizeof(AttentionRow) + sizeof(std::byte*)) + kArraysALayer * StepMemory::kAlignment;
    if (config_.IsIndexSource(l)) bytes += of(sizeof(IndexRow) + sizeof(std::int32_t));
    if (config_.IsKvSource(l)) bytes += of(2 * sizeof(PoolEntry) + sizeof(std::int64_t) + 4 * sizeof(std::byte*));
    if (config_.EngramIndexOf(l) >= 0) bytes += of(static_cast<std::size_t>(EngramWidth()) * sizeof(std::uint16_t));
  }
  return bytes;
}

// Rows of every segment from a position on, neighbours merged.
template <typename Begin>
void StepRecord::RowsFrom(std::span<Segment> segments, Begin begin, Ranges* ranges) {
  ranges->clear();
  for (const Segment& s : segments) {
    const RowRange range{s.RowOf(begin(s)), s.RowOf(s.end())};
    if (range.rows() == 0) continue;
    if (!ranges->empty() && ranges->back().end == range.begin) {
      ranges->back().end = range.end;
    } else {
      ranges->push_back(range);
    }
  }
}

std::int64_t StepRecord::FirstKvPosition(int layer, const Segment& s) const {
  if (layer < rule_.first_decoder_layer()) return s.begin();
  return s.run_decoder ? std::clamp(rule_.KvBegin(layer, s.prompt_end, s.last_rows), s.first_position, s.end()) : s.end();
}

std::int64_t StepRecord::FirstOutPosition(int layer, const Segment& s) const {
  if (layer < rule_.first_decoder_layer()) return s.begin();
  return s.run_decoder ? std::clamp(rule_.OutBegin(layer, s.prompt_end, s.last_rows), s.first_position, s.end()) : s.end();
}

void StepRecord::PlanRows(std::span<Segment> segments, std::int64_t rows) {
  sheet_.positions.resize(static_cast<std::size_t>(rows));
  for (const Segment& s : segments) {
    for (std::int64_t p = s.first_position; p < s.end(); ++p) sheet_.positions[static_cast<std::size_t>(s.RowOf(p))] = p;
  }
  RowsFrom(segments, [](const Segment& s) { return s.begin(); }, &sheet_.new_rows);
  for (int l = 0; l < config_.num_layers; ++l) {
    LayerRecord& record = sheet_.layers[static_cast<std::size_t>(l)];
    RowsFrom(segments, [&](const Segment& s) { return FirstKvPosition(l, s); }, &record.kv_rows);
    RowsFrom(segments, [&](const Segment& s) { return FirstOutPosition(l, s); }, &record.out_rows);
  }
}

// --- descriptions ----------------------------------------------------------------------------------------------------

bool StepRecord::Describe(std::span<Segment> segments, std::int64_t rows, bool fixed_shape, std::span<const kernels::SamplingRow> draws,
                          std::span<std::byte* const> window_rows_D) {
  const bool ahead = IsExpected(segments, fixed_shape, draws.size());
  if (ahead) {
    std::swap(sheet_, ahead_);
    FillTokens(segments, draws);
    for (const std::unique_ptr<StepMemory>& memory : memory_D_) memory->UseDraft();
  } else {
    for (const std::unique_ptr<StepMemory>& memory : memory_D_) memory->Clear();
    DescribeInputs(segments, rows, fixed_shape, draws.size(), window_rows_D);
    FillTokens(segments, draws);
  }
  expected_.clear();
  AddResults(rows, static_cast<std::int64_t>(draws.size()));
  return ahead;
}

void StepRecord::DescribeAhead(std::span<Segment> segments, std::int64_t rows, std::size_t draws, std::span<std::byte* const> window_rows_D) {
  std::swap(sheet_, ahead_);
  for (const std::unique_ptr<StepMemory>& memory : memory_D_) memory->BeginDraft();
  DescribeInputs(segments, rows, /*fixed_shape=*/true, draws, window_rows_D);
  std::swap(sheet_, ahead_);
  for (const Segment& s : segments) expected_.push_back(KeyOf(s));
  expected_draws_ = draws;
}

StepRecord::SegmentKey StepRecord::KeyOf(const Segment& s) { return {s.state->number(), s.begin(), s.end(), s.prompt_end, s.last_rows, s.first_position}; }

bool StepRecord::IsExpected(std::span<const Segment> segments, bool fixed_shape, std::size_t draws) const {
  return fixed_shape && !expected_.empty() && draws == expected_draws_ && std::ranges::equal(segments, expected_, {}, KeyOf);
}

// All that the kernels read, but for what depends on the tokens and how the next are drawn.
void StepRecord::DescribeInputs(std::span<Segment> segments, std::int64_t rows, bool fixed_shape, std::size_t draws, std::span<std::byte* const> window_rows_D) {
  PlanRows(segments, rows);
  for (std::size_t d = 0; d < memory_D_.size(); ++d) DescribeRows(sheet_.devices[d], *memory_D_[d]);
  for (int l = 0; l < config_.num_layers; ++l) {
    DescribeAttention(l, segments, window_rows_D[static_cast<std::size_t>(device_of_[static_cast<std::size_t>(l)])]);
    if (config_.EngramIndexOf(l) >= 0) sheet_.layers[static_cast<std::size_t>(l)].engram = MemoryOf(l).Add<std::uint16_t>(rows * EngramWidth());
    if (config_.IsKvSource(l)) DescribeEntries(l, segments, fixed_shape);
  }
  const int head = config_.num_layers - 1;
  sheet_.devices[static_cast<std::size_t>(device_of_.back())].draws = MemoryOf(head).Add<kernels::SamplingRow>(static_cast<std::int64_t>(draws));
}

void StepRecord::DescribeRows(DeviceRecord& record, StepMemory& memory) {
  const auto rows = static_cast<std::int64_t>(sheet_.positions.size());
  record.ids = memory.Add<std::int32_t>(rows);
  record.positions = memory.Add<std::int64_t>(rows);
  record.first_pre = memory.Add<float>(rows * config_.hc_mult);
  std::ranges::copy(sheet_.positions, record.positions.host);
  std::ranges::fill(record.first_pre.values(), 0.0f);
  for (std::int64_t t = 0; t < rows; ++t) record.first_pre.host[t * config_.hc_mult] = 1.0f;
}

void StepRecord::FillTokens(std::span<Segment> segments, std::span<const kernels::SamplingRow> draws) {
  for (DeviceRecord& record : sheet_.devices) {
    for (const Segment& s : segments) {
      for (std::int64_t p = s.first_position; p < s.end(); ++p) record.ids.host[s.RowOf(p)] = s.IdAt(p);
    }
  }
  for (int l = 0; l < config_.num_layers; ++l) {
    if (config_.EngramIndexOf(l) >= 0) FillEngram(l, segments);
  }
  std::ranges::copy(draws, sheet_.devices[static_cast<std::size_t>(device_of_.back())].draws.host);
}

// Results come last, so that one copy brings them back.
void StepRecord::AddResults(std::int64_t rows, std::int64_t draws) {
  const auto add = [](StepMemory& memory, std::int64_t count) {
    const StepArray<std::int32_t> array = memory.Add<std::int32_t>(count);
    std::ranges::fill(array.values(), 0);
    return array;
  };
  for (std::size_t d = 0; d < memory_D_.size(); ++d) {
    DeviceRecord& record = sheet_.devices[d];
    record.results = memory_D_[d]->used();
    record.overflow = add(*memory_D_[d], config_.num_layers + 1);
    record.router_nan = add(*memory_D_[d], config_.num_layers);
  }
  sheet_.devices[static_cast<std::size_t>(device_of_.back())].drawn = add(MemoryOf(config_.num_layers - 1), draws);
  for (int l = 0; l < config_.num_layers; ++l) {
    if (config_.IsIndexSource(l)) sheet_.layers[static_cast<std::size_t>(l)].selected_count = add(MemoryOf(l), rows);
  }
}

// Where each row finds its sequence's window, compressed rows and index keys.
void StepRecord::DescribeAttention(int layer, std::span<Segment> segments, std::byte* window_rows) {
  LayerRecord& record = sheet_.layers[static_cast<std::size_t>(layer)];
  StepMemory& memory = MemoryOf(layer);
  const auto rows = static_cast<std::int64_t>(sheet_.positions.size());
  const std::int64_t row_bytes = kv_.formats().window.row_bytes();
  const int source = config_.KvSourceOf(layer);
  record.attention = memory.Add<AttentionRow>(rows);
  record.window_to = memory.Add<std::byte*>(rows);
  std::ranges::fill(record.window_to.values(), nullptr);
  if (config_.IsIndexSource(layer)) record.index = memory.Add<IndexRow>(rows);
  for (const Segment& s : segments) {
    const LayerKv& kv = s.state->layer(layer);
    const LayerKv* source_kv = source < 0 ? nullptr : &s.state->layer(source);
    const std::int64_t kv_begin = FirstKvPosition(layer, s);
    AttentionRow row;
    row.window = {kv.window->current(), kv.window->slots(), window_rows + s.RowOf(kv_begin) * row_bytes, kv_begin, row_bytes};
    if (source_kv) row.compressed = source_kv->compressed->View();
    for (std::int64_t p = s.first_position; p < s.end(); ++p) {
      row.position = p;
      if (source_kv) row.visible = (p + 1) / config_.ratio(layer);
      record.attention.host[s.RowOf(p)] = row;
      if (config_.IsIndexSource(layer)) record.index.host[s.RowOf(p)] = {source_kv->index_keys->View(), row.visible};
    }
    if (kv_begin < s.end()) DescribeWindowStores(layer, s);
  }
}

// The step's last window rows go into the ring, where later steps find them.
void StepRecord::DescribeWindowStores(int layer, const Segment& s) {
  DoubleRing& ring = *s.state->layer(layer).window;
  // Where the decoder half lags behind, what it has not seen yet comes back from the stash after a cancellation: only the rows before
  // that must survive.
  const std::int64_t survive = layer < rule_.first_decoder_layer() ? s.begin() : s.decoder_begin();
  std::byte* target = ring.BeginWrite(s.end() - survive, kv_.sizes().window_in_place);
  for (std::int64_t p = std::max(FirstKvPosition(layer, s), s.end() - ring.slots()); p < s.end(); ++p) {
    sheet_.layers[static_cast<std::size_t>(layer)].window_to.host[s.RowOf(p)] = target + p % ring.slots() * ring.slot_bytes();
  }
}

void StepRecord::FillEngram(int layer, std::span<Segment> segments) {
  const int index = config_.EngramIndexOf(layer);
  for (const Segment& s : segments) {
    // The last kv source reads out for all new rows, before what waits in the stash joins them.
    const std::int64_t begin = layer == rule_.first_decoder_layer() ? s.begin() : FirstKvPosition(layer, s);
    GatherEngram(index, s, begin, sheet_.layers[static_cast<std::size_t>(layer)].engram.host);
  }
}

// Table rows for the segment's positions from `begin` on, on all host threads: each is dozens of reads here and there.
void StepRecord::GatherEngram(int index, const Segment& s, std::int64_t begin, std::uint16_t* rows) {
  constexpr std::int64_t kPiece = 8;
  std::mutex mutex;
  std::exception_ptr failure;
  host_stream_.ParallelFor(s.end() - begin, kPiece, [&](std::int64_t first, std::int64_t last, int) {
    std::array<std::int32_t, EngramTable::kMaxNgram> recent;
    try {
      for (std::int64_t p = begin + first; p < begin + last; ++p) {
        std::size_t known = 0;
        for (std::int64_t q = p; q >= 0 && q > p - config_.engram.max_ngram_size; --q) recent[known++] = s.IdAt(q);
        engram_.Gather(index, std::span(recent).first(known), rows + s.RowOf(p) * EngramWidth());
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

// The compressed rows and index keys that the step completes.
void StepRecord::DescribeEntries(int layer, std::span<Segment> segments, bool fixed_shape) {
  LayerRecord& record = sheet_.layers[static_cast<std::size_t>(layer)];
  StepMemory& memory = MemoryOf(layer);
  const auto rows = static_cast<std::int64_t>(sheet_.positions.size());
  const int ratio = config_.ratio(layer);
  record.completed = 0;
  for (const Segment& s : segments) record.completed += s.end() / ratio - s.begin() / ratio;
  record.entries = fixed_shape ? rows : record.completed;
  const LayerKv& first = segments.front().state->layer(layer);
  const auto add = [&](auto& array, bool present, std::int64_t count) {
    array = {};
    if (!present) return;
    array = memory.Add<std::remove_reference_t<decltype(*array.host)>>(count);
    std::ranges::fill(array.values(), std::remove_reference_t<decltype(*array.host)>{});
  };
  add(record.entry_position, true, record.entries);
  add(record.compressed_to, true, record.entries);
  add(record.index_key_to, first.index_keys != nullptr, record.entries);
  add(record.pool, first.history != nullptr, record.entries);
  add(record.index_pool, first.index_history != nullptr, record.entries);
  add(record.history_to, first.history != nullptr, rows);
  add(record.index_history_to, first.index_history != nullptr, rows);
  std::int64_t next = 0;
  for (const Segment& s : segments) {
    const LayerKv& kv = s.state->layer(layer);
    const bool overlap = kv.index_history != nullptr;
    if (kv.history) DescribePool(layer, s, kv.history.get(), overlap, s.begin() / ratio, record.pool.host + next, record.history_to.host);
    if (overlap) DescribePool(layer, s, kv.index_history.get(), overlap, s.begin() / ratio, record.index_pool.host + next, record.index_history_to.host);
    for (std::int64_t j = s.begin() / ratio; j < s.end() / ratio; ++j, ++next) {
      record.entry_position.host[next] = j * ratio;
      record.compressed_to.host[next] = kv.compressed->Row(j);
      if (kv.index_keys) record.index_key_to.host[next] = kv.index_keys->Row(j);
    }
  }
}

// One compressor's share of a segment: its entries, and which rows later steps will pool.
void StepRecord::DescribePool(int layer, const Segment& s, DoubleRing* history, bool overlap, std::int64_t first_entry, PoolEntry* entries,
                              float** slots_T) {
  const int ratio = config_.ratio(layer);
  for (std::int64_t j = first_entry; j < s.end() / ratio; ++j) {
    *entries++ = {j * ratio, s.begin(), s.RowOf(s.begin()), reinterpret_cast<const float*>(history->current())};
  }
  const std::int64_t needed = overlap ? 2 * ratio - 1 : ratio - 1;
  std::byte* target = history->BeginWrite(s.end() - s.begin(), history->slots() - needed);
  for (std::int64_t p = std::max(s.begin(), s.end() - history->slots()); p < s.end(); ++p) {
    slots_T[s.RowOf(p)] = reinterpret_cast<float*>(target + p % history->slots() * history->slot_bytes());
  }
}

// --- results ---------------------------------------------------------------------------------------------------------

void StepRecord::DownloadResults(int device) {
  memory_D_[static_cast<std::size_t>(device)]->Download(sheet_.devices[static_cast<std::size_t>(device)].results);
}

void StepRecord::CheckResults() const {
  const auto fail_range = [](const std::string& where) {
    throw InputError(where + ": an activation is beyond the fp16 range that its EXL3 or F16 weights need");
  };
  for (int l = 0; l < config_.num_layers; ++l) {
    const DeviceRecord& on = sheet_.devices[static_cast<std::size_t>(device_of_[static_cast<std::size_t>(l)])];
    const auto layer = [l] { return "layer " + std::to_string(l); };
    if (on.overflow.host[l] != 0) fail_range(layer());
    if (config_.IsIndexSource(l)) {
      const std::span<const std::int32_t> counts = this->layer(l).selected_count.values();
      const auto nan = std::ranges::find_if(counts, [](std::int32_t count) { return count < 0; });
      if (nan != counts.end()) {
        const std::int64_t position = sheet_.positions[static_cast<std::size_t>(nan - counts.begin())];
        throw InputError("index scores of " + layer() + ", position " + std::to_string(position) + ": a score is NaN");
      }
    }
    if (on.router_nan.host[l] != 0) throw InputError("router of " + layer() + ": a score is NaN");
  }
  if (sheet_.devices[static_cast<std::size_t>(device_of_.back())].overflow.host[config_.num_layers] != 0) fail_range("head");
}

}  // namespace lockstep::fast
