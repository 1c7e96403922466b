#include "harness/bench/synthetic_state.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fast/kv_state.h"
#include "fast/layer_map.h"
#include "kernels/random_exl3/counter_rng.h"
#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep::bench {
namespace {

using kernels::Device;

constexpr std::int64_t kValues = std::int64_t{1} << 20;  // random numbers on a device, of which rows are overlapping pieces
constexpr std::int64_t kMostRows = 32768;                // of one call
constexpr std::int64_t kStep = 8;                        // from row to row, and what row starts are a multiple of

// Writes random rows into the state's layers on one device.
class Filler {
 public:
  Filler(Device& device, std::uint64_t seed) : device_(device), rng_(seed, "state"), values_(device, kValues, "random rows"), to_(device, kMostRows, "random rows") {
    std::vector<std::uint16_t> host(kValues);
    for (std::int64_t i = 0; i < kValues; ++i) {
      host[static_cast<std::size_t>(i)] = FloatToBF16(static_cast<float>(rng_.NormalInt(i) / kernels::kNormalDeviation));
    }
    Upload(values_.bytes(), host);
  }

  // What follows is the next part's, whichever device it lies on.
  void BeginPart(std::int64_t part) { draws_ = part << 32; }

  void Pages(const kernels::RowFormat& format, const fast::PagedStore& store, std::int64_t rows) {
    Pack(format, rows, [&](std::int64_t row) { return store.Row(row); });
  }

  void Ring(const kernels::RowFormat& format, fast::DoubleRing& ring) {
    Pack(format, ring.slots(), [&](std::int64_t row) { return ring.current() + row * ring.slot_bytes(); });
  }

  // Open groups: fp32 values of unit size.
  void History(fast::DoubleRing& ring) {
    std::vector<float> host(static_cast<std::size_t>(ring.slots() * ring.slot_bytes()) / sizeof(float));
    for (float& value : host) value = static_cast<float>(rng_.NormalInt(draws_++) / kernels::kNormalDeviation);
    Upload(ring.current(), host);
  }

  void Finish() { device_.Synchronize(device_.compute()); }

 private:
  template <typename T>
  void Upload(std::byte* to, const std::vector<T>& host) {
    device_.CopyIn(device_.compute(), to, reinterpret_cast<const std::byte*>(host.data()), host.size() * sizeof(T));
    device_.Synchronize(device_.compute());
  }

  template <typename Address>
  void Pack(const kernels::RowFormat& format, std::int64_t rows, Address address) {
    const std::int64_t most = (kValues - format.width) / kStep;
    kernels::PackRowsArgs pack;
    pack.format = format;
    pack.x_stride = kStep;
    pack.to_T = to_.data();
    for (std::int64_t first = 0; first < rows; first += pack.rows) {
      const std::int64_t skipped = rng_.Below(draws_++, static_cast<std::uint32_t>(most / 2));
      pack.x = values_.data() + skipped * kStep;
      pack.rows = std::min({rows - first, most - skipped, kMostRows});
      std::vector<std::byte*> to;
      for (std::int64_t i = 0; i < pack.rows; ++i) to.push_back(address(first + i));
      Upload(to_.bytes(), to);
      device_.kernels().pack_rows(device_.compute(), pack);
    }
  }

  Device& device_;
  kernels::CounterRng rng_;
  std::int64_t draws_ = 0;
  kernels::DeviceArray<std::uint16_t> values_;
  kernels::DeviceArray<std::byte*> to_;  // where the rows of a call go
};

}  // namespace

void FillState(fast::FastEngine& engine, kernels::Backend& backend, std::int64_t tokens, std::uint64_t seed, fast::FastSession* session) {
  const ModelConfig& config = engine.config();
  const fast::StateFormats& formats = engine.kv().formats();
  fast::KvState& state = session->state();
  LOCKSTEP_CHECK(state.position == 0);
  state.Reserve(tokens);
  std::vector<std::unique_ptr<Filler>> fillers;
  for (int d = 0; d < backend.device_count(); ++d) fillers.push_back(std::make_unique<Filler>(backend.device(d), seed));
  const std::vector<int> device_of = fast::MapLayers(config, backend.device_count());
  for (int l = 0; l < config.num_layers; ++l) {
    Filler& filler = *fillers[static_cast<std::size_t>(device_of[static_cast<std::size_t>(l)])];
    fast::LayerKv& kv = state.layer(l);
    filler.BeginPart(l);
    filler.Ring(formats.window, *kv.window);
    if (kv.compressed) filler.Pages(formats.compressed, *kv.compressed, tokens / config.ratio(l));
    if (kv.index_keys) filler.Pages(formats.index_key, *kv.index_keys, tokens / config.ratio(l));
    if (kv.history) filler.History(*kv.history);
    if (kv.index_history) filler.History(*kv.index_history);
  }
  for (const auto& filler : fillers) filler->Finish();
  const kernels::CounterRng rng(seed, "ids");
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(rng.Below(i, static_cast<std::uint32_t>(config.vocab_size))));
  state.Commit(ids, tokens);
}

}  // namespace lockstep::bench
