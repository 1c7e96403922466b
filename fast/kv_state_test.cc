#include "fast/kv_state.h"

#include <gtest/gtest.h>

#include "fast/layer_map.h"
#include "harness/synth/shapes.h"
#include "model/error.h"

namespace lockstep::fast {
namespace {

constexpr std::int64_t kContext = 500000;

struct State {
  ModelConfig config;
  NumericsOptions numerics;
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<KvFactory> factory;

  explicit State(synth::Shape shape, std::size_t page_memory = 0) : config(synth::MakeConfig(shape, {})) {
    backend = kernels::MakeBackend(kernels::ParseDeviceSpec("cpu,threads=1"), numerics.profile);
    factory = std::make_unique<KvFactory>(*backend, config, numerics, MapLayers(config, 1), /*page_shift=*/8, kContext, page_memory, /*poison=*/false);
  }
};

// 890 bytes a token: 2.5 rows of 288 bytes of compressed KV and 68 of index key.
TEST(KvState, FullShapeV41At500KTokensIsBelowSixTenthsOfAGigabyte) {
  State s(synth::Shape::kV41Flash);
  const std::unique_ptr<KvState> state = s.factory->Make();
  state->Reserve(kContext);
  EXPECT_LT(state->bytes(), std::size_t{600000000});
  EXPECT_EQ(s.backend->device(0).memory_used(), state->bytes());
  const double per_token = static_cast<double>(s.factory->page_bytes_in_use()) / static_cast<double>(kContext);
  EXPECT_NEAR(per_token, 890.0, 890.0 * 1e-3);  // whole pages
  RecordProperty("bytes", std::to_string(state->bytes()));
}

TEST(KvState, TooFewPagesIsRefusedBeforeAnythingIsTaken) {
  State s(synth::Shape::kV41Flash, /*page_memory=*/std::size_t{4} << 20);
  const std::unique_ptr<KvState> state = s.factory->Make();
  state->Reserve(1000);
  const std::size_t held = s.factory->page_bytes_in_use();
  EXPECT_THROW(state->Reserve(100000), InputError);
  EXPECT_EQ(s.factory->page_bytes_in_use(), held);
  state->Cancel();
  EXPECT_EQ(s.factory->page_bytes_in_use(), 0u);
}

TEST(KvState, BeyondTheContextIsRefused) {
  State s(synth::Shape::kV41Flash);
  const std::unique_ptr<KvState> state = s.factory->Make();
  EXPECT_THROW(state->Reserve(kContext + 1), InputError);
}

TEST(LayerMap, CutsOnlyWhereNoKvOrSelectionCrosses) {
  const ModelConfig config = synth::MakeConfig(synth::Shape::kV41Flash, {});
  for (int devices : {1, 2, 3, 4, 8}) {
    const std::vector<int> map = MapLayers(config, devices);
    ASSERT_EQ(map.size(), static_cast<std::size_t>(config.num_layers));
    for (int l = 0; l < config.num_layers; ++l) {
      const int kv = config.KvSourceOf(l), index = config.IndexSourceOf(l);
      if (kv >= 0) EXPECT_EQ(map[static_cast<std::size_t>(kv)], map[static_cast<std::size_t>(l)]) << "layer " << l << ", devices " << devices;
      if (index >= 0) EXPECT_EQ(map[static_cast<std::size_t>(index)], map[static_cast<std::size_t>(l)]) << "layer " << l << ", devices " << devices;
    }
  }
}

TEST(LayerMap, V4SplitsInEqualShares) {
  const std::vector<int> map = MapLayers(synth::MakeConfig(synth::Shape::kV4Flash, {}), 4);
  int count[4] = {};
  for (int device : map) ++count[device];
  for (int layers : count) EXPECT_NEAR(layers, 43.0 / 4, 1.0);
}

}  // namespace
}  // namespace lockstep::fast
