// A config.json from a stranger: either refused, or its roles are consistent and it survives being written and
// read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "harness/fuzz/fuzz_target.h"
#include "model/config.h"

namespace {

using lockstep::ModelConfig;

void CheckRoles(const ModelConfig& config) {
  LOCKSTEP_CHECK(config.compress_ratios.size() == static_cast<std::size_t>(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const int kv = config.KvSourceOf(layer), index = config.IndexSourceOf(layer);
    LOCKSTEP_CHECK((kv >= 0) == (config.ratio(layer) > 0));
    LOCKSTEP_CHECK(kv <= layer && index <= layer);
    if (kv >= 0) LOCKSTEP_CHECK(config.ratio(kv) == config.ratio(layer) && config.IsKvSource(kv));
    if (index >= 0) LOCKSTEP_CHECK(config.KvSourceOf(index) == kv && config.IsIndexSource(index));
    LOCKSTEP_CHECK(config.EngramIndexOf(layer) < static_cast<int>(config.engram.num_embeddings.size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::AllowInputError([&] {
    const ModelConfig config =
        lockstep::ParseConfig({reinterpret_cast<const char*>(data), size}, "config.json");
    CheckRoles(config);
    LOCKSTEP_CHECK(lockstep::ParseConfig(lockstep::ConfigToJson(config), "written") == config);
  });
  return 0;
}
