#include "fast/expert_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fast/random_weights.h"
#include "fast/poison.h"
#include "model/error.h"

namespace lockstep::fast {
namespace {

// Any number from a seed and a place, the same on every machine (splitmix64).
std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

ExpertStore::ExpertStore(kernels::Backend& backend, const Checkpoint& checkpoint, const std::vector<int>& device_of,
                         std::span<const PlacedExpert> shared_L, const EngineOptions& options)
    : backend_(backend), device_of_(device_of), options_(options), slot_bytes_(static_cast<std::size_t>(backend.device_count()), 0) {
  for (std::size_t l = 0; l < checkpoint.weights.layers.size(); ++l) {
    std::vector<Expert> layer;
    for (const ExpertWeights& weights : checkpoint.weights.layers[l].experts) {
      Expert expert;
      expert.spec = kernels::MakeExpertSpec(weights, options.numerics, checkpoint.config.weight_block_size);
      const bool stored = backend.device(device_of[l]).stores();
      if (stored && IsRandom(weights.w1)) {
        expert.random = &weights;
      } else {
        expert.host_blob = backend.AllocateHost(static_cast<std::size_t>(expert.spec.bytes), "expert weights");
        if (stored) kernels::PackExpert(weights, expert.spec, expert.host_blob);
      }
      std::size_t& slot = slot_bytes_[static_cast<std::size_t>(device_of[l])];
      slot = std::max(slot, static_cast<std::size_t>(expert.spec.bytes));
      layer.push_back(expert);
    }
    experts_.push_back(std::move(layer));
    MakeTable(static_cast<int>(l), shared_L[l]);
  }
  for (int d = 0; d < backend.device_count(); ++d) {
    slots_.emplace_back();
    const std::size_t bytes = slot_bytes_[static_cast<std::size_t>(d)];
    for (int i = 0; i < options.staging_slots && bytes > 0; ++i) {
      slots_.back().push_back(backend.device(d).Allocate(bytes, "expert staging slot"));
      if (options.poison) FillWithNaN(backend.device(d), slots_.back().back(), bytes);
    }
  }
}

void ExpertStore::Place(std::span<const std::size_t> reserve_D) {
  for (int l = 0; l < static_cast<int>(experts_.size()); ++l) {
    const std::size_t reserve = reserve_D[static_cast<std::size_t>(device_of_[static_cast<std::size_t>(l)])];
    for (int e = 0; e < static_cast<int>(experts_[static_cast<std::size_t>(l)].size()); ++e) {
      const std::size_t used = device(l).memory_used() + reserve, limit = device(l).memory_limit();
      if (WantResident(l, e, limit > used ? limit - used : 0)) SetResident(l, e, true);
      MakeOnHost(at(l, e));
    }
  }
}

// An expert that is to stay on the host and is not there yet.
void ExpertStore::MakeOnHost(Expert& expert) {
  if (!expert.random) return;
  expert.host_blob = backend_.AllocateHost(static_cast<std::size_t>(expert.spec.bytes), "expert weights");
  MakeRandom(backend_.host_kernels(), backend_.host_stream(), *std::exchange(expert.random, nullptr), expert.spec, expert.host_blob);
}

ExpertStore::~ExpertStore() {
  for (std::size_t l = 0; l < experts_.size(); ++l) {
    for (Expert& expert : experts_[l]) {
      if (expert.host_blob) backend_.FreeHost(expert.host_blob);
      if (expert.device_blob) device(static_cast<int>(l)).Free(expert.device_blob);
    }
  }
  for (std::size_t d = 0; d < slots_.size(); ++d) {
    for (std::byte* slot : slots_[d]) backend_.device(static_cast<int>(d)).Free(slot);
  }
}

// Few layers have experts of more than a handful of forms.
void ExpertStore::MakeTable(int layer, const PlacedExpert& shared) {
  const std::vector<Expert>& experts = experts_[static_cast<std::size_t>(layer)];
  auto table = std::make_unique<LayerTable>();
  std::vector<std::int32_t> form_X;
  const auto add = [&](const kernels::ExpertSpec& spec) {
    const auto found = std::find(table->host_forms.begin(), table->host_forms.end(), spec);
    form_X.push_back(static_cast<std::int32_t>(found - table->host_forms.begin()));
    if (found == table->host_forms.end()) table->host_forms.push_back(spec);
    for (const kernels::LinearSpec* part : {&spec.gate, &spec.up, &spec.down}) {
      table->usable = table->usable && part->kind == kernels::LinearSpec::Kind::kExl3;
    }
    table->usable = table->usable && spec.gate.out_features == shared.spec->gate.out_features;
  };
  for (const Expert& expert : experts) add(expert.spec);
  add(*shared.spec);
  std::vector<const std::byte*> blob_X(experts.size(), nullptr);
  blob_X.push_back(shared.blob);
  kernels::Device& on = device(layer);
  const auto fill = [&on](auto& array, const auto& values) {
    array = {on, values.size(), "expert table"};
    on.CopyIn(on.compute(), array.bytes(), reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(values[0]));
  };
  fill(table->form_X, form_X);
  fill(table->forms, table->host_forms);
  fill(table->blob_X, blob_X);
  on.Synchronize(on.compute());
  table->table = {static_cast<int>(blob_X.size()), static_cast<int>(table->host_forms.size()), table->blob_X.data(), table->form_X.data(),
                  table->forms.data(), table->host_forms.data()};
  tables_.push_back(std::move(table));
}

void ExpertStore::SetBlob(int layer, int expert) {
  kernels::Device& on = device(layer);
  const std::byte* const& blob = at(layer, expert).device_blob;
  on.CopyIn(on.compute(), reinterpret_cast<std::byte*>(tables_[static_cast<std::size_t>(layer)]->blob_X.data() + expert),
            reinterpret_cast<const std::byte*>(&blob), sizeof(blob));
  on.Synchronize(on.compute());
}

const kernels::ExpertTable* ExpertStore::table(int layer) const {
  const LayerTable& table = *tables_[static_cast<std::size_t>(layer)];
  return table.usable && table.resident == table.table.experts - 1 ? &table.table : nullptr;
}

bool ExpertStore::WantResident(int layer, int expert, std::size_t room) const {
  if (static_cast<std::size_t>(at(layer, expert).spec.bytes) > room) return false;
  switch (options_.residency) {
    case Residency::kAuto:
    case Residency::kAll:
      return true;
    case Residency::kNone:
      return false;
    case Residency::kRandom:
      return Mix(options_.residency_seed + Mix(static_cast<std::uint64_t>(layer) * 65536u + static_cast<std::uint64_t>(expert))) & 1u;
  }
  return false;
}

void ExpertStore::Plan(int layer, std::span<const std::int32_t> rows_X, std::vector<ExpertUse>* uses) const {
  // A streamed expert costs one copy whatever its rows, the CPU lane costs per row: few rows go to the CPU. The crossover is refined
  // by measured rates where there is a real link; on CPU devices the two lanes run at the same speed.
  constexpr std::int64_t kCpuLaneRows = 4;
  uses->clear();
  for (std::size_t e = 0; e < rows_X.size(); ++e) {
    if (rows_X[e] == 0) continue;
    ExpertUse use{static_cast<int>(e), rows_X[e], Lane::kResident};
    if (!resident(layer, use.expert)) {
      const bool cpu = options_.cpu_lane == CpuLane::kAll || (options_.cpu_lane == CpuLane::kAuto && use.rows <= kCpuLaneRows);
      use.lane = cpu ? Lane::kCpu : Lane::kStreamed;
    }
    uses->push_back(use);
  }
}

const std::byte* ExpertStore::blob(int layer, int expert) const {
  const Expert& e = at(layer, expert);
  return e.device_blob ? e.device_blob : e.host_blob;
}

const std::byte* ExpertStore::Stage(int layer, int expert, int slot) {
  const Expert& e = at(layer, expert);
  LOCKSTEP_CHECK(e.host_blob != nullptr);
  std::byte* target = slots_[static_cast<std::size_t>(device_of_[static_cast<std::size_t>(layer)])][static_cast<std::size_t>(slot)];
  device(layer).CopyIn(device(layer).copy(), target, e.host_blob, static_cast<std::size_t>(e.spec.bytes));
  stats_.bytes_copied += e.spec.bytes;
  return target;
}

void ExpertStore::Release(int layer, int slot) {
  if (!options_.poison) return;
  const auto d = static_cast<std::size_t>(device_of_[static_cast<std::size_t>(layer)]);
  device(layer).WaitFor(device(layer).compute(), device(layer).copy());
  FillWithNaN(device(layer), slots_[d][static_cast<std::size_t>(slot)], slot_bytes_[d]);
}

void ExpertStore::SetResident(int layer, int expert, bool resident) {
  Expert& e = at(layer, expert);
  if (resident == (e.device_blob != nullptr)) return;
  resident ? MoveToDevice(device(layer), e) : MoveToHost(device(layer), e);
  SetBlob(layer, expert);
  tables_[static_cast<std::size_t>(layer)]->resident += resident ? 1 : -1;
  ++generation_;
}

void ExpertStore::MoveToDevice(kernels::Device& on, Expert& e) {
  const auto bytes = static_cast<std::size_t>(e.spec.bytes);
  e.device_blob = on.Allocate(bytes, "resident expert");
  if (e.random) {
    MakeRandom(on.kernels(), on.compute(), *std::exchange(e.random, nullptr), e.spec, e.device_blob);
    return on.Synchronize(on.compute());
  }
  on.CopyIn(on.copy(), e.device_blob, e.host_blob, bytes);
  on.Synchronize(on.copy());
  backend_.FreeHost(std::exchange(e.host_blob, nullptr));
}

void ExpertStore::MoveToHost(kernels::Device& on, Expert& e) {
  const auto bytes = static_cast<std::size_t>(e.spec.bytes);
  e.host_blob = backend_.AllocateHost(bytes, "expert weights");
  on.CopyOut(on.copy(), e.host_blob, e.device_blob, bytes);
  on.Synchronize(on.copy());
  if (options_.poison) {
    FillWithNaN(on, e.device_blob, bytes);
    on.Synchronize(on.compute());
  }
  on.Free(std::exchange(e.device_blob, nullptr));
}

void ExpertStore::Fill(int layer, int expert, std::byte value) {
  Expert& e = at(layer, expert);
  const std::vector<std::byte> fill(static_cast<std::size_t>(e.spec.bytes), value);
  if (e.host_blob) std::memcpy(e.host_blob, fill.data(), fill.size());
  if (!e.device_blob) return;
  device(layer).CopyIn(device(layer).copy(), e.device_blob, fill.data(), fill.size());
  device(layer).Synchronize(device(layer).copy());
}

}  // namespace lockstep::fast
