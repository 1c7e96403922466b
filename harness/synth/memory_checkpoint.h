// Models without files, named where a directory may stand: "synth:v4-flash,bits=2.9,layers=8,seed=1,skew=0.75,codebook=mul1,engram=0".
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "harness/synth/synth.h"
#include "model/checkpoint.h"

namespace lockstep::synth {

// Whether `model` names a model without files.
bool IsSynthName(std::string_view model);

// The options that a name stands for; what it leaves out has the defaults of `lockstep synth`. Throws InputError naming the part that it does
// not understand.
SynthOptions ParseSynthName(std::string_view model);
// The name of `options`, without what is default.
std::string SynthName(const SynthOptions& options);

enum class Bulk {
  kMadeWhereUsed,  // EXL3 matrices and Engram tables are random tensors, which the fast engine makes on its devices
  kInMemory,       // every tensor is in host memory, for readers that know nothing else
};

// The checkpoint that WriteCheckpoint would write for `options`, without a tokenizer: same tensors, same bytes.
std::shared_ptr<const Checkpoint> MakeCheckpoint(const SynthOptions& options, Bulk bulk);

}  // namespace lockstep::synth
