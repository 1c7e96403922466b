// How close the decisions of a run were: the next token, experts, index entries and candidate blocks.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/step_trace.h"

namespace lockstep::cli {

// Margins of one kind of decision. A margin is thin if it is below the threshold times the scale of the
// compared values.
struct MarginSummary {
  std::int64_t decisions = 0;
  std::int64_t thin = 0;
  double smallest = 0;  // meaningful once decisions > 0
  std::int64_t smallest_position = -1;

  void Add(std::int64_t position, double margin, double scale, double threshold);
};

// Collects the decisions of one engine. The scale of an index or candidate decision is the largest magnitude
// among the token's index scores; router scores are of order one and have scale 1; a token's is its largest
// logit's magnitude.
class MarginCollector : public StepTrace {
 public:
  explicit MarginCollector(double threshold) : threshold_(threshold) {}

  void OnStep(std::string_view step, int layer, std::int64_t position, std::span<const float> values) override;
  void OnDecision(std::string_view kind, int layer, std::int64_t position, double margin) override;
  // Logits of one position.
  void OnLogits(std::int64_t position, std::span<const float> logits_V);

  // {"threshold", "thin", "argmax": {..., "margins": [one a position]}, "layers": [{"layer", "router", ...}]}
  nlohmann::ordered_json ToJson() const;

 private:
  double threshold_;
  double index_scale_ = 1;
  MarginSummary argmax_;
  std::vector<double> argmax_margins_;
  std::map<std::pair<int, std::string>, MarginSummary> by_layer_;
};

// Distance of a run's logits from the same run in truth.
class TruthComparison {
 public:
  void OnLogits(std::int64_t position, std::span<const float> logits_V, std::span<const float> truth_V);

  // {"max_abs_difference", "position", "argmax_differs": [{"position", "id", "margin", "truth_id",
  // "truth_margin"}]}
  nlohmann::ordered_json ToJson() const;

 private:
  double max_difference_ = 0;
  std::int64_t max_position_ = -1;
  nlohmann::ordered_json disagreements_ = nlohmann::ordered_json::array();
};

}  // namespace lockstep::cli
