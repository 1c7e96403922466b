#include "fast/engine.h"

#include <algorithm>

#include "fast/layer_map.h"
#include "model/error.h"

namespace lockstep::fast {
namespace {

constexpr std::int64_t kLogitRows = 16;  // logits computed together

}  // namespace

FastEngine::FastEngine(std::shared_ptr<const Checkpoint> checkpoint, const EngineOptions& options,
                       const BackendFactory& make_backend)
    : checkpoint_(std::move(checkpoint)), options_(options) {
  const ModelConfig& c = checkpoint_->config;
  if (options_.numerics.stale_index_keys) {
    throw InputError("--stale-index-keys exists in the reference only: use --engine reference");
  }
  if (options_.max_context == 0) options_.max_context = c.max_position_embeddings;
  backend_ = make_backend(options_.device, options_.numerics.profile);
  device_of_ = MapLayers(c, backend_->device_count());
  memory_.resize(static_cast<std::size_t>(backend_->device_count()));
  model_ = std::make_unique<DeviceModel>(LoadDeviceModel(*backend_, *checkpoint_, options_.numerics, device_of_));
  Account(&DeviceMemory::trunk);
  kv_ = std::make_unique<KvFactory>(*backend_, c, options_.numerics, device_of_, options_.page_shift, options_.max_context,
                                    options_.page_memory, options_.poison);
  std::vector<PlacedExpert> shared_L;
  for (const DeviceLayer& layer : model_->layers) shared_L.push_back({&layer.shared_expert.spec, layer.shared_expert.blob.data()});
  experts_ = std::make_unique<ExpertStore>(*backend_, *checkpoint_, device_of_, shared_L, options_);
  Account(&DeviceMemory::staging);
  const Resources resources{*backend_, *checkpoint_, options_, device_of_, *model_, *experts_, *kv_, stats_};
  const std::int64_t stash_rows = options_.exact_tail ? kv_->sizes().stash_rows : 0;
  forward_ = std::make_unique<Forward>(resources, options_.chunk_rows + std::min(stash_rows, options_.max_context), kLogitRows);
  Account(&DeviceMemory::activations);
  // Experts get what is left when everything else has its place, sessions among it.
  std::vector<std::size_t> reserve_D;
  for (int d = 0; d < backend_->device_count(); ++d) {
    const std::int64_t paged = options_.page_memory > 0 ? 0 : options_.max_context;
    reserve_D.push_back(options_.page_memory + kv_->SessionBytes(d, paged));
    memory_[static_cast<std::size_t>(d)].session = reserve_D.back();
  }
  experts_->Place(reserve_D);
  Account(&DeviceMemory::experts);
}

void FastEngine::Account(std::size_t DeviceMemory::*part) {
  for (int d = 0; d < backend_->device_count(); ++d) {
    DeviceMemory& memory = memory_[static_cast<std::size_t>(d)];
    const std::size_t before = memory.trunk + memory.staging + memory.activations + memory.experts;
    memory.*part = backend_->device(d).memory_used() - before;
  }
}

FastEngine::~FastEngine() = default;

std::unique_ptr<Session> FastEngine::NewSession() { return std::make_unique<FastSession>(*this, kv_->Make()); }

bool FastEngine::Fits(std::span<Segment> segments) const {
  std::int64_t new_rows = 0;
  for (const Segment& segment : segments) new_rows += static_cast<std::int64_t>(segment.ids.size());
  return new_rows <= step_rows() && PlanSegments(config(), forward_->tail_rule(), segments) <= forward_->max_rows();
}

bool FastEngine::RunStep(std::span<Segment> segments, const std::function<bool()>& cancelled) { return forward_->Run(segments, cancelled); }

EngineStats FastEngine::stats() const {
  EngineStats stats = stats_;
  stats.experts = experts_->stats();
  return stats;
}

void FastEngine::ResetStats() {
  stats_ = {};
  experts_->stats() = {};
}

std::string FastEngine::Description() const {
  std::string text;
  for (int d = 0; d < backend_->device_count(); ++d) {
    if (d > 0) text += "; ";
    text += backend_->device(d).Description();
  }
  return text;
}

std::int64_t FastEngine::device_bytes() const {
  std::int64_t bytes = 0;
  for (int d = 0; d < backend_->device_count(); ++d) bytes += static_cast<std::int64_t>(backend_->device(d).memory_used());
  return bytes;
}

std::vector<float> FastSession::Append(std::span<const std::int32_t> ids, std::int64_t last_rows) {
  return Append(ids, last_rows, [] { return false; });
}

std::vector<float> FastSession::Append(std::span<const std::int32_t> ids, std::int64_t last_rows, const std::function<bool()>& cancelled) {
  LOCKSTEP_CHECK(last_rows >= 0 && last_rows <= static_cast<std::int64_t>(ids.size()));
  CheckIds(ids, state_->position, engine_.config());
  const std::int64_t end = state_->position + static_cast<std::int64_t>(ids.size());
  state_->Reserve(end);
  std::vector<float> logits;
  while (!ids.empty()) {
    Segment segment;
    segment.state = state_.get();
    segment.ids = ids.first(static_cast<std::size_t>(ChunkRows(state_->position, end, last_rows, engine_.step_rows())));
    segment.prompt_end = end;
    segment.last_rows = last_rows;
    if (!engine_.RunStep({&segment, 1}, cancelled)) return {};
    logits.insert(logits.end(), segment.logits.begin(), segment.logits.end());
    ids = ids.subspan(segment.ids.size());
  }
  return logits;
}

std::unique_ptr<Session> FastSession::Fork() const { return std::make_unique<FastSession>(engine_, state_->Clone()); }

}  // namespace lockstep::fast
