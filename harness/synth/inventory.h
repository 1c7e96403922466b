// All tensors of a synthetic checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/synth/matrix_plan.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace lockstep::synth {

// The tensors of `config` under their official names (EXL3: those of a pack), in the order of the layers.
// Deviations keep activations near unit size at every depth. routing_skew as in PopularityLaw.
std::vector<TensorToWrite> MakeTensors(const ModelConfig& config, const MatrixPlan& plan, double routing_skew,
                                       std::uint64_t seed);

}  // namespace lockstep::synth
