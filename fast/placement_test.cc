// The plan of a placement against what an engine has taken when it has started.
#include "fast/placement.h"

#include <gtest/gtest.h>

#include <string>

#include "fast/engine.h"
#include "model/checkpoint.h"
#include "model/error.h"

namespace lockstep::fast {
namespace {

std::shared_ptr<const Checkpoint> Open(const std::string& model) {
  return std::make_shared<const Checkpoint>(
      OpenCheckpoint(std::string(LOCKSTEP_SOURCE_DIR) + "/golden/models/" + model));
}

// An engine's own account of each device.
void ExpectAsTaken(const std::string& model, const EngineOptions& options) {
  const auto checkpoint = Open(model);
  const std::vector<DevicePlacement> plan = PlanPlacement(checkpoint, options);
  kernels::Backend* backend = nullptr;
  FastEngine engine(checkpoint, options, [&](const kernels::DeviceSpec& spec, Profile profile) {
    auto made = kernels::MakeBackend(spec, profile);
    backend = made.get();
    return made;
  });
  ASSERT_EQ(plan.size(), static_cast<std::size_t>(backend->device_count()));
  for (int d = 0; d < backend->device_count(); ++d) {
    const DevicePlacement& device = plan[static_cast<std::size_t>(d)];
    EXPECT_EQ(device.limit, backend->device(d).memory_limit());
    EXPECT_EQ(device.trunk + device.staging + device.activations + device.resident,
              backend->device(d).memory_used())
        << model << ", device " << d;
    EXPECT_EQ(device.session, engine.kv().SessionBytes(d, engine.max_context()));
    std::int64_t resident = 0;
    for (int l = device.first_layer; l < device.first_layer + device.layers; ++l) {
      for (int e = 0; e < engine.config().n_routed_experts; ++e) resident += engine.experts().resident(l, e);
    }
    EXPECT_EQ(device.resident_experts, resident);
    EXPECT_EQ(device.resident_experts + device.streamed_experts,
              device.layers * engine.config().n_routed_experts);
  }
}

EngineOptions Options(const std::string& device) {
  EngineOptions options;
  options.device = kernels::ParseDeviceSpec(device);
  options.max_context = 512;
  options.chunk_rows = 64;
  return options;
}

TEST(PlacementTest, IsWhatAnEngineTakes) {
  for (const char* model : {"tiny-v4-native", "tiny-v4-mul1", "tiny-v4-mixed", "tiny-v41-native",
                            "tiny-v41-mul1", "tiny-v41-mixed"}) {
    ExpectAsTaken(model, Options("cpu:1,threads=1"));
    ExpectAsTaken(model, Options("cpu:2,threads=1,mem=64MiB"));
  }
}

// With room for some of the experts the rest is streamed; with less than everything else needs, the refusal
// names it.
TEST(PlacementTest, ALimitLeavesExpertsOut) {
  EngineOptions options = Options("cpu:1,threads=1,mem=64MiB");
  const DevicePlacement roomy = PlanPlacement(Open("tiny-v41-mul1"), options).front();
  EXPECT_EQ(roomy.streamed_experts, 0);
  const std::size_t fixed = roomy.trunk + roomy.staging + roomy.activations + roomy.session;
  options.device.memory_limit = fixed + roomy.resident / 2;
  const DevicePlacement tight = PlanPlacement(Open("tiny-v41-mul1"), options).front();
  EXPECT_GT(tight.resident_experts, 0);
  EXPECT_GT(tight.streamed_experts, 0);
  EXPECT_EQ(tight.resident + tight.streamed, roomy.resident);
  EXPECT_LE(fixed + tight.resident, options.device.memory_limit);
  ExpectAsTaken("tiny-v41-mul1", options);
  options.device.memory_limit = roomy.trunk / 2;
  EXPECT_THROW(PlanPlacement(Open("tiny-v41-mul1"), options), InputError);
}

TEST(PlacementTest, DevicesNeedNotExist) {
  EngineOptions options = Options("cuda:0,1,mem=64MiB");
  const std::vector<DevicePlacement> plan = PlanPlacement(Open("tiny-v4-mul1"), options);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_GT(plan[0].layers, 0);
  EXPECT_EQ(plan[1].first_layer, plan[0].layers);
  EXPECT_GT(plan[1].trunk, 0u);
}

}  // namespace
}  // namespace lockstep::fast
