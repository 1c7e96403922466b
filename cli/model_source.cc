#include "cli/model_source.h"

#include "harness/synth/memory_checkpoint.h"

namespace lockstep::cli {

std::shared_ptr<const Checkpoint> OpenModel(const std::string& model, bool only_fast) {
  if (!synth::IsSynthName(model)) return std::make_shared<const Checkpoint>(OpenCheckpoint(model));
  const synth::Bulk bulk = only_fast ? synth::Bulk::kMadeWhereUsed : synth::Bulk::kInMemory;
  return synth::MakeCheckpoint(synth::ParseSynthName(model), bulk);
}

}  // namespace lockstep::cli
