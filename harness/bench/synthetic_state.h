// Sessions that are already long: a valid KV state of random rows, so that decode at a context need not prefill it.
#pragma once

#include <cstdint>

#include "fast/engine.h"
#include "kernels/device/backend.h"

namespace lockstep::bench {

// Gives an empty session of `engine` a state of `tokens` random tokens: window rows, compressed rows and index keys packed by the engine's own
// kernels from random activations of unit size, open groups, ids. `backend` is the engine's.
void FillState(fast::FastEngine& engine, kernels::Backend& backend, std::int64_t tokens, std::uint64_t seed, fast::FastSession* session);

}  // namespace lockstep::bench
