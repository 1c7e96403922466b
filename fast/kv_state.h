// The KV state of a sequence: packed window rings, paged compressed rows and index keys, open compressor groups, and, for V4.1's
// exact tail, the streams that the decoder half still has to see. Everything a step writes stays invisible until Commit, so a cancelled
// step leaves the state as it was.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/kv_rows/kv_rows.h"
#include "model/config.h"
#include "model/numerics_options.h"

namespace lockstep::fast {

// Row formats of a model's state.
struct StateFormats {
  kernels::RowFormat window, compressed, index_key;
};
StateFormats MakeStateFormats(const ModelConfig& config, const NumericsOptions& numerics);

// Fixed-size pages of one device and row format, taken and given back. `poison` fills them with NaN bytes whenever nothing in them counts.
class PagePool {
 public:
  PagePool(kernels::Device& device, std::size_t page_bytes, bool poison) : device_(device), page_bytes_(page_bytes), poison_(poison) {}
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  std::byte* Take();
  void Give(std::byte* page);
  std::size_t page_bytes() const { return page_bytes_; }
  std::int64_t pages_in_use() const { return in_use_; }
  kernels::Device& device() { return device_; }

 private:
  kernels::Device& device_;
  std::size_t page_bytes_;
  bool poison_;
  std::int64_t in_use_ = 0;
  std::vector<std::byte*> free_;
};

// A growing array of rows in pages. Pages are taken before a step; rows past what the state counts are never read.
class PagedStore {
 public:
  PagedStore(PagePool& pool, int page_shift, std::int64_t row_bytes, std::int64_t max_rows);
  ~PagedStore();
  PagedStore(PagedStore&&) = default;

  void Reserve(std::int64_t rows);
  std::int64_t PagesNeeded(std::int64_t rows) const;
  // Gives back every page that only rows from `rows` on lie in.
  void Truncate(std::int64_t rows);
  void FillWithNaNFrom(std::int64_t row);
  // Takes pages for `rows` rows and copies those.
  void CopyFrom(const PagedStore& other, std::int64_t rows);
  std::size_t bytes() const { return pages_.size() * pool_->page_bytes() + table_.size() * sizeof(std::byte*); }
  // Address of a row whose page is taken.
  std::byte* Row(std::int64_t i) const {
    return pages_[static_cast<std::size_t>(i >> page_shift_)] + (i & ((std::int64_t{1} << page_shift_) - 1)) * row_bytes_;
  }
  kernels::PagedRows View() const { return {table_.data(), page_shift_, static_cast<std::int32_t>(row_bytes_)}; }

 private:
  void UploadTable(std::size_t begin);

  PagePool* pool_;
  int page_shift_;
  std::int64_t row_bytes_;
  std::vector<std::byte*> pages_;
  kernels::DeviceArray<std::byte*> table_;
};

// Two copies of a ring, one of them current: steps that fit beside the rows still needed write in place, longer ones write the other copy,
// which becomes current on commit. `poison` fills a copy with NaN bytes before it is first written, so that only written slots can be read.
class DoubleRing {
 public:
  DoubleRing(kernels::Device& device, std::int64_t slots, std::int64_t slot_bytes, std::string_view what, bool poison);

  std::int64_t slots() const { return slots_; }
  std::int64_t slot_bytes() const { return slot_bytes_; }
  std::byte* current() const { return copies_[static_cast<std::size_t>(current_)].data(); }
  // Where a step may write whose last row is `rows` rows after the last one that must survive its cancellation, given that up to
  // `in_place_rows` of them leave the rows before intact.
  std::byte* BeginWrite(std::int64_t rows, std::int64_t in_place_rows);
  void Commit();
  void Cancel() { pending_ = current_; }
  // Whether Commit leaves it where it is.
  bool in_place() const { return pending_ == current_; }
  void CopyFrom(const DoubleRing& other);
  // All but the places of positions [begin, end), at most slots() of them.
  void FillWithNaNOutside(std::int64_t begin, std::int64_t end);
  std::size_t bytes() const { return copies_[0].size() + copies_[1].size(); }

 private:
  kernels::Device* device_;
  std::int64_t slots_, slot_bytes_;
  std::string what_;
  bool poison_;
  kernels::DeviceArray<std::byte> copies_[2];
  int current_ = 0, pending_ = 0;
};

// State of one layer. Absent parts are null.
struct LayerKv {
  std::unique_ptr<DoubleRing> window;
  std::unique_ptr<PagedStore> compressed, index_keys;
  std::unique_ptr<DoubleRing> history, index_history;  // open groups, fp32
};

// Streams [S*E] bf16 and pre [S] fp32 at the input of the last kv source, position p at slot p % rows.
struct TailStash {
  kernels::DeviceArray<std::uint16_t> stream;
  kernels::DeviceArray<float> pre;
  std::int64_t rows = 0;
};

struct KvSizes {
  std::int64_t window_rows = 0;        // slots of a window ring
  std::int64_t window_in_place = 0;    // rows a step may write into it in place
  std::int64_t stash_rows = 0;         // V4.1 with exact tail
};

class KvState;

// Makes the states of one engine: knows the model's shapes and owns the page pools.
class KvFactory {
 public:
  KvFactory(kernels::Backend& backend, const ModelConfig& config, const NumericsOptions& numerics, const std::vector<int>& device_of,
            int page_shift, std::int64_t max_context, std::size_t page_memory, bool poison);

  std::unique_ptr<KvState> Make();
  // Most memory that a session of `tokens` tokens takes on a device.
  std::size_t SessionBytes(int device, std::int64_t tokens) const;
  const StateFormats& formats() const { return formats_; }
  const KvSizes& sizes() const { return sizes_; }
  // Throws InputError when the pages for `entries_needed` more bytes would exceed the limit.
  void CheckRoom(std::size_t more_bytes) const;
  std::size_t page_bytes_in_use() const;

 private:
  friend class KvState;
  PagePool& PoolFor(int device, std::int64_t row_bytes);

  kernels::Backend& backend_;
  const ModelConfig& config_;
  std::vector<int> device_of_;
  int page_shift_;
  std::int64_t max_context_;
  std::size_t page_memory_;
  bool poison_;
  StateFormats formats_;
  KvSizes sizes_;
  struct PoolKey {
    int device;
    std::int64_t row_bytes;
    std::unique_ptr<PagePool> pool;
  };
  std::vector<PoolKey> pools_;
};

class KvState {
 public:
  explicit KvState(KvFactory& factory);

  std::int64_t position = 0;          // tokens whose encoder half is done
  std::int64_t decoder_position = 0;  // tokens whose decoder half is done or not needed; == position outside a prompt
  std::vector<std::int32_t> ids;      // all tokens so far

  LayerKv& layer(int l) { return layers_[static_cast<std::size_t>(l)]; }
  // The stash, with memory: it is held only while the decoder half lags behind.
  TailStash& OpenStash();

  // Takes the pages that positions up to `end` need. Throws InputError, with nothing taken, when there are too few.
  void Reserve(std::int64_t end);
  // The same, and Cancel does not give them back: the promise that a sequence can go on to `end` whatever else runs.
  void Keep(std::int64_t end);
  // Whether the pages that positions up to `end` need are there.
  bool Holds(std::int64_t end) const;
  // Whether the running step writes all rings in place, so that Commit moves nothing.
  bool in_place() const;
  // No other state of this program has it.
  std::uint64_t number() const { return number_; }
  // Makes a finished step visible: `ids` appended, rings flipped.
  void Commit(std::span<const std::int32_t> new_ids, std::int64_t new_decoder_position);
  // Forgets what a cancelled step wrote.
  void Cancel();
  std::unique_ptr<KvState> Clone() const;
  // Bytes of device memory held.
  std::size_t bytes() const;

 private:
  kernels::Device& TailDevice() const;
  void FillUnreadWithNaN();

  // visit(store, the rows that positions up to `end` need, bytes a row).
  template <typename Visit>
  void ForStores(std::int64_t end, Visit visit) const;

  KvFactory& factory_;
  std::uint64_t number_;
  std::vector<LayerKv> layers_;
  TailStash stash_;
  std::int64_t kept_end_ = 0;
};

}  // namespace lockstep::fast
