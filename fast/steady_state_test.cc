// Decode allocates nothing once it is warm: counted through the global allocation functions.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "fast/engine.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* data = std::malloc(bytes ? bytes : 1)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }

namespace lockstep::fast {
namespace {

// `steps` decode steps of one sequence, its logits buffer reused as the scheduler does.
long AllocationsOfDecode(const std::string& model, Residency residency, Graphs graphs) {
  EngineOptions options;
  options.device = kernels::ParseDeviceSpec("cpu,threads=2");
  options.residency = residency;
  options.graphs = graphs;
  options.max_context = 1024;
  FastEngine engine(std::make_shared<Checkpoint>(OpenCheckpoint(model)), options);
  const std::unique_ptr<KvState> state = engine.kv().Make();
  Segment segment;
  segment.state = state.get();
  const auto step = [&](std::int32_t id) {
    segment.ids = {&id, 1};
    segment.prompt_end = state->position + 1;
    segment.last_rows = 1;
    engine.RunStep({&segment, 1}, [] { return false; });
  };
  state->ids.reserve(1024);
  for (std::int32_t i = 0; i < 200; ++i) step(3 + i % 50);
  // Pages of the next tokens and RoPE rows ahead of need are taken outside the count, as a server does on admission.
  state->Reserve(264);
  allocations = 0;
  counting = true;
  for (std::int32_t i = 0; i < 32; ++i) step(3 + i);
  counting = false;
  return allocations;
}

TEST(SteadyState, DecodeAllocatesNothing) {
  const std::string models = LOCKSTEP_SOURCE_DIR "/golden/models/";
  for (const char* model : {"tiny-v41-mul1", "tiny-v4-mixed"}) {
    for (Residency residency : {Residency::kAll, Residency::kRandom}) {
      for (Graphs graphs : {Graphs::kOff, Graphs::kOn}) {
        EXPECT_EQ(AllocationsOfDecode(models + model, residency, graphs), 0)
            << model << ", residency " << static_cast<int>(residency) << ", graphs " << static_cast<int>(graphs);
      }
    }
  }
}

TEST(SteadyState, TheCounterCounts) {
  counting = true;
  allocations = 0;
  ::operator delete(::operator new(16));
  counting = false;
  EXPECT_EQ(allocations, 1);
}

}  // namespace
}  // namespace lockstep::fast
