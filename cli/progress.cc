#include "cli/progress.h"

#include <cstdio>
#include <utility>

namespace lockstep::cli {
namespace {

constexpr std::chrono::seconds kInterval{3};

}  // namespace

ProgressTrace::ProgressTrace(std::string what, int layers, std::int64_t total, StepTrace* next)
    : what_(std::move(what)), layers_(layers), total_(total), next_(next) {}

void ProgressTrace::OnStep(std::string_view step, int layer, std::int64_t position,
                           std::span<const float> values) {
  if (next_ != nullptr) next_->OnStep(step, layer, position, values);
  if (position >= total_ || (step != step::kAttnStream && step != step::kFfnStream)) return;
  const Clock::time_point now = Clock::now();
  if (now - last_report_ < kInterval) return;
  last_report_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "lockstep: %s: layer %d of %d, token %lld of %lld, %.0f s\n", what_.c_str(), layer + 1,
               layers_, static_cast<long long>(position + 1), static_cast<long long>(total_), elapsed);
}

void ProgressTrace::OnDecision(std::string_view kind, int layer, std::int64_t position, double margin) {
  if (next_ != nullptr) next_->OnDecision(kind, layer, position, margin);
}

}  // namespace lockstep::cli
