#include "fast/kv_state.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "fast/poison.h"
#include "model/error.h"

namespace lockstep::fast {

using kernels::RowFormat;

StateFormats MakeStateFormats(const ModelConfig& config, const NumericsOptions& numerics) {
  StateFormats formats;
  const std::int32_t width = config.head_dim, index_width = config.index_head_dim;
  if (!numerics.fake_quant) {
    formats.window = formats.compressed = {RowFormat::Kind::kBf16, width, 0, 0};
    formats.index_key = {RowFormat::Kind::kBf16, index_width, 0, 0};
  } else if (config.is_v41()) {
    formats.window = {RowFormat::Kind::kFp8, width, width, 32};
    formats.compressed = {RowFormat::Kind::kFp4E4M3, width, width, 16};
    formats.index_key = {RowFormat::Kind::kFp4E8M0, index_width, index_width, 32};
  } else {
    formats.window = formats.compressed = {RowFormat::Kind::kFp8, width, width - config.rope_head_dim, 64};
    formats.index_key = {RowFormat::Kind::kHadamardFp4, index_width, index_width, 32};
  }
  return formats;
}

// --- pages -----------------------------------------------------------------------------------------------------------

PagePool::~PagePool() {
  for (std::byte* page : free_) device_.Free(page);
}

std::byte* PagePool::Take() {
  ++in_use_;
  if (free_.empty()) {
    std::byte* page = device_.Allocate(page_bytes_, "KV page");
    if (poison_) FillWithNaN(device_, page, page_bytes_);
    return page;
  }
  std::byte* page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::Give(std::byte* page) {
  --in_use_;
  if (poison_) FillWithNaN(device_, page, page_bytes_);
  free_.push_back(page);
}

PagedStore::PagedStore(PagePool& pool, int page_shift, std::int64_t row_bytes, std::int64_t max_rows)
    : pool_(&pool),
      page_shift_(page_shift),
      row_bytes_(row_bytes),
      table_(pool.device(), static_cast<std::size_t>((max_rows >> page_shift) + 1), "KV page table") {}

PagedStore::~PagedStore() {
  for (std::byte* page : pages_) pool_->Give(page);
}

std::int64_t PagedStore::PagesNeeded(std::int64_t rows) const {
  const std::int64_t pages = (rows + (std::int64_t{1} << page_shift_) - 1) >> page_shift_;
  return std::max<std::int64_t>(0, pages - static_cast<std::int64_t>(pages_.size()));
}

void PagedStore::UploadTable(std::size_t begin) {
  if (begin >= pages_.size()) return;
  kernels::Device& device = pool_->device();
  device.CopyIn(device.compute(), reinterpret_cast<std::byte*>(table_.data() + begin), reinterpret_cast<const std::byte*>(pages_.data() + begin),
                (pages_.size() - begin) * sizeof(std::byte*));
  device.Synchronize(device.compute());
}

void PagedStore::Reserve(std::int64_t rows) {
  const std::size_t begin = pages_.size();
  for (std::int64_t n = PagesNeeded(rows); n > 0; --n) pages_.push_back(pool_->Take());
  UploadTable(begin);
}

void PagedStore::Truncate(std::int64_t rows) {
  const auto keep = static_cast<std::size_t>((rows + (std::int64_t{1} << page_shift_) - 1) >> page_shift_);
  while (pages_.size() > keep) {
    pool_->Give(pages_.back());
    pages_.pop_back();
  }
}

void PagedStore::FillWithNaNFrom(std::int64_t row) {
  const std::int64_t page_rows = std::int64_t{1} << page_shift_;
  for (std::int64_t page = row >> page_shift_; page < static_cast<std::int64_t>(pages_.size()); ++page) {
    const std::int64_t used = std::max<std::int64_t>(0, row - page * page_rows);
    FillWithNaN(pool_->device(), pages_[static_cast<std::size_t>(page)] + used * row_bytes_, static_cast<std::size_t>((page_rows - used) * row_bytes_));
  }
}

void PagedStore::CopyFrom(const PagedStore& other, std::int64_t rows) {
  Reserve(rows);
  kernels::Device& device = pool_->device();
  for (std::size_t i = 0; i < pages_.size(); ++i) device.CopyWithin(device.compute(), pages_[i], other.pages_[i], pool_->page_bytes());
}

// --- rings -----------------------------------------------------------------------------------------------------------

DoubleRing::DoubleRing(kernels::Device& device, std::int64_t slots, std::int64_t slot_bytes, std::string_view what, bool poison)
    : device_(&device), slots_(slots), slot_bytes_(slot_bytes), what_(what), poison_(poison) {
  copies_[0] = kernels::DeviceArray<std::byte>(device, static_cast<std::size_t>(slots * slot_bytes), what);
  if (poison_) FillWithNaN(device, copies_[0].data(), copies_[0].size());
}

std::byte* DoubleRing::BeginWrite(std::int64_t rows, std::int64_t in_place_rows) {
  pending_ = rows <= in_place_rows ? current_ : 1 - current_;
  auto& copy = copies_[static_cast<std::size_t>(pending_)];
  if (copy.size() == 0) copy = kernels::DeviceArray<std::byte>(*device_, static_cast<std::size_t>(slots_ * slot_bytes_), what_);
  if (poison_ && pending_ != current_) FillWithNaN(*device_, copy.data(), copy.size());
  return copy.data();
}

void DoubleRing::FillWithNaNOutside(std::int64_t begin, std::int64_t end) {
  std::vector<bool> kept(static_cast<std::size_t>(slots_), false);
  for (std::int64_t p = std::max<std::int64_t>(0, begin); p < end; ++p) kept[static_cast<std::size_t>(p % slots_)] = true;
  for (std::int64_t slot = 0; slot < slots_; ++slot) {
    if (!kept[static_cast<std::size_t>(slot)]) FillWithNaN(*device_, current() + slot * slot_bytes_, static_cast<std::size_t>(slot_bytes_));
  }
  const auto& other = copies_[static_cast<std::size_t>(1 - current_)];
  FillWithNaN(*device_, other.bytes(), other.size());
}

void DoubleRing::Commit() { current_ = pending_; }

void DoubleRing::CopyFrom(const DoubleRing& other) {
  device_->CopyWithin(device_->compute(), current(), other.current(), static_cast<std::size_t>(slots_ * slot_bytes_));
}

// --- factory ---------------------------------------------------------------------------------------------------------

KvFactory::KvFactory(kernels::Backend& backend, const ModelConfig& config, const NumericsOptions& numerics, const std::vector<int>& device_of,
                     int page_shift, std::int64_t max_context, std::size_t page_memory, bool poison)
    : backend_(backend),
      config_(config),
      device_of_(device_of),
      page_shift_(page_shift),
      max_context_(max_context),
      page_memory_(page_memory),
      poison_(poison),
      formats_(MakeStateFormats(config, numerics)) {
  sizes_.window_rows = 2 * std::int64_t{config.sliding_window};
  sizes_.window_in_place = config.sliding_window + 1;
  if (config.is_v41() && !config.kv_source_layer_ids.empty()) {
    sizes_.stash_rows = std::int64_t{config.sliding_window - 1} * (config.num_layers - config.kv_source_layer_ids.back());
  }
}

PagePool& KvFactory::PoolFor(int device, std::int64_t row_bytes) {
  for (PoolKey& key : pools_) {
    if (key.device == device && key.row_bytes == row_bytes) return *key.pool;
  }
  const auto page_bytes = static_cast<std::size_t>(row_bytes << page_shift_);
  pools_.push_back({device, row_bytes, std::make_unique<PagePool>(backend_.device(device), page_bytes, poison_)});
  return *pools_.back().pool;
}

std::size_t KvFactory::page_bytes_in_use() const {
  std::size_t bytes = 0;
  for (const PoolKey& key : pools_) bytes += static_cast<std::size_t>(key.pool->pages_in_use()) * key.pool->page_bytes();
  return bytes;
}

void KvFactory::CheckRoom(std::size_t more_bytes) const {
  if (page_memory_ == 0 || page_bytes_in_use() + more_bytes <= page_memory_) return;
  throw InputError("out of KV pages: the request needs " + std::to_string(more_bytes) + " more bytes, " +
                   std::to_string(page_memory_ - std::min(page_memory_, page_bytes_in_use())) + " of " + std::to_string(page_memory_) +
                   " are free; end a session or raise the page memory");
}

std::unique_ptr<KvState> KvFactory::Make() { return std::make_unique<KvState>(*this); }

// --- state -----------------------------------------------------------------------------------------------------------

namespace {

// Slots of a compressor's history ring, and the rows a step may write in place.
std::int64_t HistorySlots(int ratio) { return 4 * std::int64_t{ratio}; }

std::unique_ptr<DoubleRing> MakeHistory(kernels::Device& device, int ratio, std::int64_t channels, bool poison) {
  return std::make_unique<DoubleRing>(device, HistorySlots(ratio), 2 * channels * static_cast<std::int64_t>(sizeof(float)), "compressor history",
                                      poison);
}

}  // namespace

std::size_t KvFactory::SessionBytes(int device, std::int64_t tokens) const {
  std::int64_t bytes = 0;
  const auto add_store = [&](const RowFormat& format, int ratio) {
    const std::int64_t page_rows = std::int64_t{1} << page_shift_, pages = (tokens / ratio + page_rows - 1) / page_rows;
    const std::int64_t table = (max_context_ / ratio + 1) / page_rows + 1;
    bytes += pages * page_rows * format.row_bytes() + table * static_cast<std::int64_t>(sizeof(std::byte*));
  };
  for (int l = 0; l < config_.num_layers; ++l) {
    if (device_of_[static_cast<std::size_t>(l)] != device) continue;
    bytes += 2 * sizes_.window_rows * formats_.window.row_bytes();
    if (!config_.IsKvSource(l)) continue;
    const int ratio = config_.ratio(l);
    const bool overlap = !config_.is_v41() && config_.IsIndexSource(l);
    add_store(formats_.compressed, ratio);
    if (config_.is_v41() || config_.IsIndexSource(l)) add_store(formats_.index_key, ratio);
    const std::int64_t channels = (ratio > 1 ? config_.head_dim : 0) + (overlap ? config_.head_dim + 2 * config_.index_head_dim : 0);
    bytes += 2 * HistorySlots(ratio) * 2 * channels * static_cast<std::int64_t>(sizeof(float));
  }
  if (sizes_.stash_rows > 0 && device_of_[static_cast<std::size_t>(config_.kv_source_layer_ids.back())] == device) {
    bytes += sizes_.stash_rows * config_.hc_mult * (2 * config_.hidden_size + std::int64_t{sizeof(float)});
  }
  return static_cast<std::size_t>(bytes);
}

KvState::KvState(KvFactory& factory) : factory_(factory) {
  static std::atomic<std::uint64_t> states = 0;
  number_ = ++states;
  const ModelConfig& config = factory.config_;
  const StateFormats& formats = factory.formats_;
  for (int l = 0; l < config.num_layers; ++l) {
    const int device_index = factory.device_of_[static_cast<std::size_t>(l)];
    kernels::Device& device = factory.backend_.device(device_index);
    LayerKv kv;
    kv.window = std::make_unique<DoubleRing>(device, factory.sizes_.window_rows, formats.window.row_bytes(), "window ring", factory.poison_);
    if (config.IsKvSource(l)) {
      const int ratio = config.ratio(l);
      const std::int64_t entries = factory.max_context_ / ratio + 1;
      const auto store = [&](const RowFormat& format) {
        return std::make_unique<PagedStore>(factory.PoolFor(device_index, format.row_bytes()), factory.page_shift_, format.row_bytes(), entries);
      };
      const bool overlap = !config.is_v41() && config.IsIndexSource(l);
      kv.compressed = store(formats.compressed);
      if (config.is_v41() || config.IsIndexSource(l)) kv.index_keys = store(formats.index_key);
      if (ratio > 1) kv.history = MakeHistory(device, ratio, config.head_dim * (overlap ? 2 : 1), factory.poison_);
      if (overlap) kv.index_history = MakeHistory(device, ratio, config.index_head_dim * 2, factory.poison_);
    }
    layers_.push_back(std::move(kv));
  }
}

TailStash& KvState::OpenStash() {
  if (stash_.rows == 0) {
    kernels::Device& device = TailDevice();
    stash_.rows = factory_.sizes_.stash_rows;
    const auto rows = static_cast<std::size_t>(stash_.rows), streams = static_cast<std::size_t>(factory_.config_.hc_mult);
    stash_.stream = {device, rows * streams * static_cast<std::size_t>(factory_.config_.hidden_size), "tail stash"};
    stash_.pre = {device, rows * streams, "tail stash"};
    if (factory_.poison_) {
      FillWithNaN(device, stash_.stream.bytes(), stash_.stream.size() * sizeof(std::uint16_t));
      FillWithNaN(device, stash_.pre.bytes(), stash_.pre.size() * sizeof(float));
    }
  }
  return stash_;
}

kernels::Device& KvState::TailDevice() const {
  const int layer = factory_.config_.kv_source_layer_ids.back();
  return factory_.backend_.device(factory_.device_of_[static_cast<std::size_t>(layer)]);
}

void KvState::Reserve(std::int64_t end) {
  if (end > factory_.max_context_) {
    throw InputError("the sequence would reach " + std::to_string(end) + " tokens; this engine was started for at most " +
                     std::to_string(factory_.max_context_) + " (max context)");
  }
  if (Holds(end)) return;
  std::size_t bytes = 0;
  ForStores(end, [&](PagedStore& store, std::int64_t rows, std::int64_t row_bytes) {
    bytes += static_cast<std::size_t>(store.PagesNeeded(rows) * (row_bytes << factory_.page_shift_));
  });
  factory_.CheckRoom(bytes);
  ForStores(end, [&](PagedStore& store, std::int64_t rows, std::int64_t) { store.Reserve(rows); });
}

template <typename Visit>
void KvState::ForStores(std::int64_t end, Visit visit) const {
  for (int l = 0; l < factory_.config_.num_layers; ++l) {
    const LayerKv& kv = layers_[static_cast<std::size_t>(l)];
    const std::int64_t entries = kv.compressed ? end / factory_.config_.ratio(l) : 0;
    if (kv.compressed) visit(*kv.compressed, entries, factory_.formats_.compressed.row_bytes());
    if (kv.index_keys) visit(*kv.index_keys, entries, factory_.formats_.index_key.row_bytes());
  }
}

bool KvState::Holds(std::int64_t end) const {
  bool holds = end <= factory_.max_context_;
  ForStores(end, [&](const PagedStore& store, std::int64_t rows, std::int64_t) { holds = holds && store.PagesNeeded(rows) <= 0; });
  return holds;
}

bool KvState::in_place() const {
  return std::ranges::all_of(layers_, [](const LayerKv& kv) {
    const auto stays = [](const std::unique_ptr<DoubleRing>& ring) { return !ring || ring->in_place(); };
    return stays(kv.window) && stays(kv.history) && stays(kv.index_history);
  });
}

void KvState::Keep(std::int64_t end) {
  Reserve(end);
  kept_end_ = end;
}

void KvState::Commit(std::span<const std::int32_t> new_ids, std::int64_t new_decoder_position) {
  ids.insert(ids.end(), new_ids.begin(), new_ids.end());
  position += static_cast<std::int64_t>(new_ids.size());
  decoder_position = new_decoder_position;
  if (decoder_position == position) stash_ = {};
  for (LayerKv& kv : layers_) {
    for (DoubleRing* ring : {kv.window.get(), kv.history.get(), kv.index_history.get()}) {
      if (ring) ring->Commit();
    }
  }
  if (factory_.poison_) FillUnreadWithNaN();
}

void KvState::Cancel() {
  for (int l = 0; l < factory_.config_.num_layers; ++l) {
    LayerKv& kv = layers_[static_cast<std::size_t>(l)];
    for (DoubleRing* ring : {kv.window.get(), kv.history.get(), kv.index_history.get()}) {
      if (ring) ring->Cancel();
    }
    const std::int64_t entries = kv.compressed ? std::max(position, kept_end_) / factory_.config_.ratio(l) : 0;
    if (kv.compressed) kv.compressed->Truncate(entries);
    if (kv.index_keys) kv.index_keys->Truncate(entries);
  }
  if (factory_.poison_) FillUnreadWithNaN();
}

// Later tokens read the window and the open group before them, and every complete entry.
void KvState::FillUnreadWithNaN() {
  const ModelConfig& config = factory_.config_;
  for (int l = 0; l < config.num_layers; ++l) {
    LayerKv& kv = layers_[static_cast<std::size_t>(l)];
    const bool decoder_half = config.is_v41() && !config.kv_source_layer_ids.empty() && l >= config.kv_source_layer_ids.back();
    const std::int64_t end = decoder_half ? decoder_position : position, ratio = config.ratio(l);
    kv.window->FillWithNaNOutside(end - (config.sliding_window - 1), end);
    // An index compressor takes every group together with the one before.
    const std::int64_t groups_before = kv.index_history ? 1 : 0;
    for (DoubleRing* history : {kv.history.get(), kv.index_history.get()}) {
      if (history) history->FillWithNaNOutside((position / ratio - groups_before) * ratio, position);
    }
    for (PagedStore* store : {kv.compressed.get(), kv.index_keys.get()}) {
      if (store) store->FillWithNaNFrom(position / ratio);
    }
  }
}

std::size_t KvState::bytes() const {
  std::size_t sum = stash_.stream.size() * sizeof(std::uint16_t) + stash_.pre.size() * sizeof(float);
  for (const LayerKv& kv : layers_) {
    for (const DoubleRing* ring : {kv.window.get(), kv.history.get(), kv.index_history.get()}) {
      if (ring) sum += ring->bytes();
    }
    for (const PagedStore* store : {kv.compressed.get(), kv.index_keys.get()}) {
      if (store) sum += store->bytes();
    }
  }
  return sum;
}

std::unique_ptr<KvState> KvState::Clone() const {
  auto copy = std::make_unique<KvState>(factory_);
  copy->Reserve(position);
  copy->position = position;
  copy->decoder_position = decoder_position;
  copy->ids = ids;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const LayerKv& from = layers_[l];
    LayerKv& to = copy->layers_[l];
    to.window->CopyFrom(*from.window);
    const std::int64_t entries = from.compressed ? position / factory_.config_.ratio(static_cast<int>(l)) : 0;
    if (from.compressed) to.compressed->CopyFrom(*from.compressed, entries);
    if (from.index_keys) to.index_keys->CopyFrom(*from.index_keys, entries);
    if (from.history) to.history->CopyFrom(*from.history);
    if (from.index_history) to.index_history->CopyFrom(*from.index_history);
  }
  if (stash_.rows > 0) {
    kernels::Device& device = TailDevice();
    copy->OpenStash();
    device.CopyWithin(device.compute(), copy->stash_.stream.bytes(), stash_.stream.bytes(), stash_.stream.size() * sizeof(std::uint16_t));
    device.CopyWithin(device.compute(), copy->stash_.pre.bytes(), stash_.pre.bytes(), stash_.pre.size() * sizeof(float));
  }
  return copy;
}

}  // namespace lockstep::fast
