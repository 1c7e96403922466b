// What a run did: counters that the command line, the benches and the tests read.
#pragma once

#include <cstdint>

namespace lockstep::fast {

struct ExpertStats {
  std::int64_t bytes_copied = 0;    // expert weights moved to a device in the course of a step
  std::int64_t bytes_skipped = 0;   // weights of experts that are not resident and that nobody picked
  std::int64_t picks_resident = 0;  // (token, expert) pairs by where they were computed
  std::int64_t picks_streamed = 0;
  std::int64_t picks_cpu = 0;
};

struct EngineStats {
  ExpertStats experts;
  std::int64_t token_layers = 0;  // (token, layer) pairs whose feed-forward half ran
  std::int64_t steps = 0;
  std::int64_t graph_steps = 0;   // of them, those that only launched what an earlier step had captured
  std::int64_t described_ahead = 0;  // and those whose record was made while the step before ran
};

}  // namespace lockstep::fast
