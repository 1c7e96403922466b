// Runs one configuration of the fast engine against the reference's logits.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fast/engine.h"
#include "harness/check/trace_recorder.h"
#include "harness/invariance/configuration.h"
#include "harness/invariance/expectation.h"
#include "model/checkpoint.h"

namespace lockstep::harness {

// Prefill and decode of the main sequence as the configuration says, then a run with every expert that the run
// does not pick filled with NaN bytes. Empty if all bits are equal, else one line that says what differs first.
// `trace` may be null.
std::optional<std::string> RunConfiguration(const std::shared_ptr<const Checkpoint>& checkpoint,
                                            const Configuration& configuration,
                                            const Expectations& expectations, StepTrace* trace,
                                            const fast::BackendFactory& make_backend = &kernels::MakeBackend);

// The first step at which a configuration that failed leaves the reference: runs both again, first without
// companions, and compares the steps of the main sequence. Empty if they agree this time.
std::optional<StepDifference> Diagnose(const std::shared_ptr<const Checkpoint>& checkpoint,
                                       const Configuration& configuration, ReferenceRuns& reference,
                                       const fast::BackendFactory& make_backend = &kernels::MakeBackend);

}  // namespace lockstep::harness
