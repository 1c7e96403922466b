#include "cli/margins.h"

#include <algorithm>
#include <cmath>

#include "model/greedy.h"

namespace lockstep::cli {
namespace {

using nlohmann::ordered_json;

double MaxAbs(std::span<const float> values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  return largest;
}

ordered_json ToJson(const MarginSummary& summary) {
  ordered_json json{{"decisions", summary.decisions}, {"thin", summary.thin}};
  if (summary.decisions > 0) {
    json["smallest"] = summary.smallest;
    json["position"] = summary.smallest_position;
  }
  return json;
}

}  // namespace

void MarginSummary::Add(std::int64_t position, double margin, double scale, double threshold) {
  if (decisions == 0 || margin < smallest) {
    smallest = margin;
    smallest_position = position;
  }
  ++decisions;
  if (margin < threshold * scale) ++thin;
}

void MarginCollector::OnStep(std::string_view step, int, std::int64_t, std::span<const float> values) {
  if (step == step::kIndexScore) index_scale_ = MaxAbs(values);
}

void MarginCollector::OnDecision(std::string_view kind, int layer, std::int64_t position, double margin) {
  if (std::isinf(margin)) return;  // nothing was left out
  const double scale = kind == "router" ? 1.0 : index_scale_;
  by_layer_[{layer, std::string(kind)}].Add(position, margin, scale, threshold_);
}

void MarginCollector::OnLogits(std::int64_t position, std::span<const float> logits_V) {
  const double margin = ChooseGreedy(logits_V).margin;
  argmax_margins_.push_back(margin);
  argmax_.Add(position, margin, MaxAbs(logits_V), threshold_);
}

ordered_json MarginCollector::ToJson() const {
  ordered_json layers = ordered_json::array();
  std::int64_t thin = argmax_.thin;
  for (const auto& [key, summary] : by_layer_) {
    const auto& [layer, kind] = key;
    if (layers.empty() || layers.back()["layer"] != layer) layers.push_back({{"layer", layer}});
    layers.back()[kind] = cli::ToJson(summary);
    thin += summary.thin;
  }
  ordered_json argmax = cli::ToJson(argmax_);
  argmax["margins"] = argmax_margins_;
  return {{"threshold", threshold_}, {"thin", thin}, {"argmax", argmax}, {"layers", layers}};
}

void TruthComparison::OnLogits(std::int64_t position, std::span<const float> logits_V,
                               std::span<const float> truth_V) {
  for (std::size_t i = 0; i < logits_V.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(logits_V[i]) - static_cast<double>(truth_V[i]));
    if (max_position_ >= 0 && difference <= max_difference_) continue;
    max_difference_ = difference;
    max_position_ = position;
  }
  const GreedyChoice ours = ChooseGreedy(logits_V), truth = ChooseGreedy(truth_V);
  if (ours.id == truth.id) return;
  disagreements_.push_back({{"position", position},
                            {"id", ours.id},
                            {"margin", ours.margin},
                            {"truth_id", truth.id},
                            {"truth_margin", truth.margin}});
}

ordered_json TruthComparison::ToJson() const {
  return {
      {"max_abs_difference", max_difference_}, {"position", max_position_}, {"argmax_differs", disagreements_}};
}

}  // namespace lockstep::cli
