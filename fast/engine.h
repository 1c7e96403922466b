// The fast engine behind the Engine interface, and the step that the scheduler drives.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "fast/forward.h"
#include "fast/options.h"
#include "fast/stats.h"
#include "model/checkpoint.h"
#include "model/engine.h"

namespace lockstep::fast {

class FastSession;

// Makes the devices of an engine; tests put backends of their own here.
using BackendFactory = std::function<std::unique_ptr<kernels::Backend>(const kernels::DeviceSpec&, Profile)>;

// Owns devices, weights, experts and the forward pass. One thread at a time may run steps.
// Bytes that an engine has taken on a device, and what it leaves free for sessions.
struct DeviceMemory {
  std::size_t trunk = 0, staging = 0, activations = 0, experts = 0;
  std::size_t session = 0;
};

class FastEngine : public Engine {
 public:
  FastEngine(std::shared_ptr<const Checkpoint> checkpoint, const EngineOptions& options,
             const BackendFactory& make_backend = &kernels::MakeBackend);
  ~FastEngine() override;

  const ModelConfig& config() const override { return checkpoint_->config; }
  std::unique_ptr<Session> NewSession() override;

  // New tokens that one step can hold.
  std::int64_t step_rows() const { return options_.chunk_rows; }
  // Tokens of the longest sequence.
  std::int64_t max_context() const { return options_.max_context; }
  // Whether a step of these segments fits: their new tokens, and what those that end a prompt restore from the tail stash.
  bool Fits(std::span<Segment> segments) const;
  // Runs one step over segments of distinct sessions that fit. See Forward::Run.
  bool RunStep(std::span<Segment> segments, const std::function<bool()>& cancelled);

  // Between steps.
  void SetGraphs(Graphs graphs) { options_.graphs = graphs; }
  ExpertStore& experts() { return *experts_; }
  int device_of(int layer) const { return device_of_[static_cast<std::size_t>(layer)]; }
  // Per device, as it was when the engine had started.
  const std::vector<DeviceMemory>& memory() const { return memory_; }
  KvFactory& kv() { return *kv_; }
  EngineStats stats() const;
  void ResetStats();
  std::string Description() const;
  // Memory in use, all devices.
  std::int64_t device_bytes() const;

 private:
  // What every device has taken since the last call goes to `part`.
  void Account(std::size_t DeviceMemory::*part);

  std::shared_ptr<const Checkpoint> checkpoint_;
  EngineOptions options_;
  std::unique_ptr<kernels::Backend> backend_;
  std::vector<int> device_of_;
  std::vector<DeviceMemory> memory_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<KvFactory> kv_;
  std::unique_ptr<ExpertStore> experts_;
  EngineStats stats_;
  std::unique_ptr<Forward> forward_;
};

class FastSession : public Session {
 public:
  FastSession(FastEngine& engine, std::unique_ptr<KvState> state) : engine_(engine), state_(std::move(state)) {}

  std::int64_t position() const override { return state_->position; }
  std::vector<float> Append(std::span<const std::int32_t> ids, std::int64_t last_rows) override;
  std::unique_ptr<Session> Fork() const override;

  // The same, but asks `cancelled` at every layer boundary. When it says yes, keeps the chunks that were finished, and returns
  // nothing; position() tells how far it came.
  std::vector<float> Append(std::span<const std::int32_t> ids, std::int64_t last_rows, const std::function<bool()>& cancelled);
  KvState& state() { return *state_; }

 private:
  FastEngine& engine_;
  std::unique_ptr<KvState> state_;
};

}  // namespace lockstep::fast
