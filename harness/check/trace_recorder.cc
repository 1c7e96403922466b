#include "harness/check/trace_recorder.h"

#include <utility>

namespace lockstep::harness {

void TraceRecorder::OnStep(std::string_view step, int layer, std::int64_t position,
                           std::span<const float> values) {
  if (!only_.empty() && step != only_) return;
  StepKey key{std::string(step), layer, position};
  std::vector<std::vector<float>>& reports = reports_[key];
  reports.emplace_back(values.begin(), values.end());
  if (reports.size() == 1) order_.push_back(std::move(key));
}

const std::vector<std::vector<float>>& TraceRecorder::reports(const StepKey& key) const {
  static const std::vector<std::vector<float>> kNone;
  const auto found = reports_.find(key);
  return found == reports_.end() ? kNone : found->second;
}

void TraceRecorder::Clear() {
  order_.clear();
  reports_.clear();
}

std::string StepDifference::Describe() const {
  std::string where = key.step;
  if (key.layer >= 0) where += " of layer " + std::to_string(key.layer);
  const bool is_entry = key.step == step::kCompressed || key.step == step::kIndexKey;
  where += (is_entry ? ", entry " : ", position ") + std::to_string(key.position);
  return where + ": " + bits.Describe();
}

std::optional<StepDifference> FirstDifference(const TraceRecorder& reference, const TraceRecorder& other) {
  for (const StepKey& key : reference.order()) {
    const std::vector<float>& expected = reference.reports(key).back();
    std::optional<BitDifference> last;
    bool same = other.reports(key).empty();
    for (const std::vector<float>& got : other.reports(key)) {
      last = FindDifference(got, expected);
      same = same || !last;
    }
    if (!same) return StepDifference{key, *last};
  }
  return std::nullopt;
}

}  // namespace lockstep::harness
