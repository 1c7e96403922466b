#include "reference/testing/same_bits.h"

#include <utility>

namespace lockstep::reference {
namespace {

testing::AssertionResult SameRows(const RowQueue<float>& got, const RowQueue<float>& expected) {
  if (got.first != expected.first && !(got.values.empty() && expected.values.empty())) {
    return testing::AssertionFailure() << "rows start at " << got.first << ", expected " << expected.first;
  }
  return SameBits(got.values, expected.values);
}

}  // namespace

testing::AssertionResult SameBits(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) {
    return testing::AssertionFailure() << got.size() << " values, expected " << expected.size();
  }
  if (got.empty() || std::memcmp(got.data(), expected.data(), got.size_bytes()) == 0) {
    return testing::AssertionSuccess();
  }
  std::size_t i = 0;
  while (std::memcmp(&got[i], &expected[i], sizeof(float)) == 0) ++i;
  return testing::AssertionFailure() << "element " << i << " is " << got[i] << ", expected " << expected[i];
}

testing::AssertionResult SameState(const SequenceState<float>& got, const SequenceState<float>& expected) {
  if (got.position != expected.position) return testing::AssertionFailure() << "position " << got.position;
  if (got.recent_ids != expected.recent_ids) return testing::AssertionFailure() << "recent ids differ";
  for (std::size_t l = 0; l < got.layers.size(); ++l) {
    const LayerState<float>&a = got.layers[l], &b = expected.layers[l];
    const std::pair<const char*, testing::AssertionResult> parts[] = {
        {"window", SameRows(a.window, b.window)},
        {"compressor kv", SameRows(a.compressor.kv, b.compressor.kv)},
        {"compressor gate", SameRows(a.compressor.gate, b.compressor.gate)},
        {"index compressor kv", SameRows(a.index_compressor.kv, b.index_compressor.kv)},
        {"index compressor gate", SameRows(a.index_compressor.gate, b.index_compressor.gate)},
        {"compressed", SameRows(a.compressed, b.compressed)},
        {"index keys", SameRows(a.index_keys, b.index_keys)},
        {"index scales", SameRows(a.index_scales, b.index_scales)}};
    for (const auto& [name, result] : parts) {
      if (!result)
        return testing::AssertionFailure() << "layer " << l << ", " << name << ": " << result.message();
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace lockstep::reference
