// Progress on stderr for runs that take long.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "model/step_trace.h"

namespace lockstep::cli {

// Passes every step on to `next` and says, a few seconds apart, which layer and token the engine has reached.
class ProgressTrace : public StepTrace {
 public:
  // `next` is not owned and may be null. Reports the first `total` tokens, processed by a model of `layers`
  // layers.
  ProgressTrace(std::string what, int layers, std::int64_t total, StepTrace* next);

  void OnStep(std::string_view step, int layer, std::int64_t position, std::span<const float> values) override;
  void OnDecision(std::string_view kind, int layer, std::int64_t position, double margin) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  int layers_;
  std::int64_t total_;
  StepTrace* next_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_report_ = start_;
};

}  // namespace lockstep::cli
