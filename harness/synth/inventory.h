// All tensors of a synthetic checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/synth/matrix_plan.h"
#include "harness/synth/tensor_source.h"
#include "model/config.h"

namespace lockstep::synth {

// The tensors of `config` under their official names (EXL3: those of a pack), in the order of the layers.
// Deviations keep activations near unit size at every depth. routing_skew as in PopularityLaw.
std::vector<SynthTensor> MakeSynthTensors(const ModelConfig& config, const MatrixPlan& plan, double routing_skew,
                                          std::uint64_t seed);
// The same, to be written.
std::vector<TensorToWrite> MakeTensors(const ModelConfig& config, const MatrixPlan& plan, double routing_skew,
                                       std::uint64_t seed);

// A token map for a model without a tokenizer [vocab_size]: the first ids keep their numbers, the others share them.
std::vector<std::int32_t> MakeTokenMap(const ModelConfig& config, std::uint64_t seed);

}  // namespace lockstep::synth
