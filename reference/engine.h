// The reference behind the Engine interface.
#pragma once

#include <memory>

#include "model/checkpoint.h"
#include "model/engine.h"
#include "reference/options.h"

namespace lockstep::reference {

// `checkpoint` is shared with the engine and its sessions.
std::unique_ptr<Engine> MakeEngine(std::shared_ptr<const Checkpoint> checkpoint, const Options& options);

}  // namespace lockstep::reference
