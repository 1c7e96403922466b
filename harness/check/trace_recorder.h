// Keeps the step values of a run, and names the first step at which two runs part.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/check/same_bits.h"
#include "model/step_trace.h"

namespace lockstep::harness {

struct StepKey {
  std::string step;
  int layer = -1;             // -1: outside the layers
  std::int64_t position = 0;  // compressed and index_key: the entry

  auto operator<=>(const StepKey&) const = default;
};

class TraceRecorder : public StepTrace {
 public:
  // Keeps only this step; empty keeps all.
  explicit TraceRecorder(std::string only = "") : only_(std::move(only)) {}

  void OnStep(std::string_view step, int layer, std::int64_t position, std::span<const float> values) override;

  // Keys in the order in which they were first reported.
  const std::vector<StepKey>& order() const { return order_; }
  // What was reported under a key, oldest first. Several values: several sequences, or a step that was
  // cancelled and run again.
  const std::vector<std::vector<float>>& reports(const StepKey& key) const;
  void Clear();

 private:
  std::string only_;
  std::vector<StepKey> order_;
  std::map<StepKey, std::vector<std::vector<float>>> reports_;
};

struct StepDifference {
  StepKey key;
  BitDifference bits;

  // "attn_heads of layer 3, position 17: element 4 is ...".
  std::string Describe() const;
};

// The first of the reference's steps, in its order, that the other run reported too and never with the same
// bits. Steps that only one run reports do not count: the fast engine leaves out what no later token needs.
// With other sequences beside the one in question, one of the reports of a key must have the reference's bits.
std::optional<StepDifference> FirstDifference(const TraceRecorder& reference, const TraceRecorder& other);

}  // namespace lockstep::harness
