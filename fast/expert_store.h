// Where every routed expert's weights live and how they get to where they are computed. The engine asks by (layer, id) and never
// touches weights itself. Each expert has one home: device memory (resident) or host memory (streamed into a staging slot, or computed by
// the CPU lane). A later store with copy engines and adaptive residency goes behind the same interface.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fast/options.h"
#include "fast/stats.h"
#include "kernels/device/backend.h"
#include "model/checkpoint.h"

namespace lockstep::fast {

enum class Lane { kResident, kStreamed, kCpu };

// One expert that a layer needs: how many pairs it serves, and the lane the plan chose.
struct ExpertUse {
  int expert = 0;
  std::int64_t rows = 0;
  Lane lane = Lane::kResident;
};

// An expert that is on its device for good.
struct PlacedExpert {
  const kernels::ExpertSpec* spec = nullptr;
  const std::byte* blob = nullptr;
};

class ExpertStore {
 public:
  // Packs all experts of `checkpoint` into host memory; those of a model without files are made by Place. `checkpoint` outlives the store.
  // Throws InputError when the staging slots do not fit.
  // `shared_L`: each layer's shared expert.
  ExpertStore(kernels::Backend& backend, const Checkpoint& checkpoint, const std::vector<int>& device_of, std::span<const PlacedExpert> shared_L,
              const EngineOptions& options);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Makes experts resident by options.residency, within what each device's memory limit leaves when reserve_D[device] bytes stay free.
  void Place(std::span<const std::size_t> reserve_D);

  // Chooses a lane for each expert with rows > 0; the others do not appear in `uses`. rows_X[expert] counts pairs.
  void Plan(int layer, std::span<const std::int32_t> rows_X, std::vector<ExpertUse>* uses) const;

  const kernels::ExpertSpec& spec(int layer, int expert) const { return at(layer, expert).spec; }
  bool resident(int layer, int expert) const { return at(layer, expert).device_blob != nullptr; }
  // The layer's experts, the shared one last, for jobs that the device makes; null unless all of them are resident, and all of EXL3
  // matrices of the same sizes. Its address stays the same.
  const kernels::ExpertTable* table(int layer) const;
  // Changes whenever an expert moves.
  std::int64_t generation() const { return generation_; }
  // Weights in device memory (resident) or host memory (not resident).
  const std::byte* blob(int layer, int expert) const;

  // Copies an expert that is not resident into staging slot `slot` on the layer's copy stream. The slot must be free: whatever computed
  // from it before has been waited for.
  const std::byte* Stage(int layer, int expert, int slot);
  // What used the slot is enqueued on the layer's compute stream. For tests: the slot's bytes count no more after it.
  void Release(int layer, int slot);
  int staging_slots() const { return options_.staging_slots; }

  // Moves an expert between host and device memory. Not during a step.
  void SetResident(int layer, int expert, bool resident);
  // Overwrites an expert's bytes; the tests poison what must not be read.
  void Fill(int layer, int expert, std::byte value);

  ExpertStats& stats() { return stats_; }

 private:
  struct Expert {
    kernels::ExpertSpec spec;
    const ExpertWeights* random = nullptr;  // not made yet
    std::byte* host_blob = nullptr;
    std::byte* device_blob = nullptr;
  };
  // What the device knows of a layer's experts.
  struct LayerTable {
    kernels::DeviceArray<const std::byte*> blob_X;
    kernels::DeviceArray<std::int32_t> form_X;
    kernels::DeviceArray<kernels::ExpertSpec> forms;
    std::vector<kernels::ExpertSpec> host_forms;
    kernels::ExpertTable table;
    bool usable = true;  // EXL3 matrices of the same sizes
    int resident = 0;  // experts
  };
  void MoveToDevice(kernels::Device& on, Expert& e);
  void MoveToHost(kernels::Device& on, Expert& e);
  void MakeTable(int layer, const PlacedExpert& shared);
  void SetBlob(int layer, int expert);
  const Expert& at(int layer, int expert) const { return experts_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)]; }
  Expert& at(int layer, int expert) { return experts_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)]; }
  kernels::Device& device(int layer) { return backend_.device(device_of_[static_cast<std::size_t>(layer)]); }
  bool WantResident(int layer, int expert, std::size_t room) const;
  void MakeOnHost(Expert& expert);

  kernels::Backend& backend_;
  std::vector<int> device_of_;
  EngineOptions options_;
  std::vector<std::vector<Expert>> experts_;                // [layer][expert]
  std::vector<std::unique_ptr<LayerTable>> tables_;         // [layer]
  std::vector<std::vector<std::byte*>> slots_;              // [device][slot]
  std::vector<std::size_t> slot_bytes_;                     // [device]
  std::int64_t generation_ = 0;
  ExpertStats stats_;
};

}  // namespace lockstep::fast
