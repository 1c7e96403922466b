// What `lockstep bench` measures: prefill, suffixes and decode of one engine, each figure beside its limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fast/options.h"
#include "fast/stats.h"
#include "harness/bench/op_profile.h"
#include "harness/bench/rates.h"
#include "harness/bench/work.h"
#include "model/checkpoint.h"

namespace lockstep::bench {

// One measured run: `tokens` tokens in `seconds`.
struct Figure {
  std::string what;  // "prefill", "suffix", "decode"
  std::int64_t context = 0;  // tokens before the run
  std::int64_t tokens = 0;   // prompt tokens, or sequences of a decode step
  double seconds = 0;        // of the prompt, or of one step (median)
  Limit limit;
  fast::EngineStats stats;      // of the prompt, or of all timed steps
  std::int64_t steps = 1;       // timed; decode: the breakdown and stats are of all of them
  std::vector<OpTime> profile;  // of a second run, by operation; empty if not asked for
  double profiled_seconds = 0;  // of that run
};

struct BenchOptions {
  fast::EngineOptions engine;  // max_context is set by Bench
  std::int64_t max_context = 0;
  int decode_steps = 16;
  bool profile_steps = false;
  std::uint64_t seed = 1;
};

class Bench {
 public:
  // Loads the engine and measures the device's rates. Throws InputError for what the engine cannot load.
  Bench(std::shared_ptr<const Checkpoint> checkpoint, const BenchOptions& options);

  // Reads a prompt of random tokens after a made-up state of `prefix` tokens.
  Figure Prompt(std::int64_t prefix, std::int64_t tokens);
  // Steps of one token for each of `batch` sequences, each at `context` tokens.
  Figure Decode(std::int64_t context, std::int64_t batch);

  const Rates& rates() const { return rates_; }
  std::string Device() const { return engine_->Description(); }
  double load_seconds() const { return load_seconds_; }
  std::int64_t device_bytes() const { return engine_->device_bytes(); }

 private:
  std::unique_ptr<fast::FastSession> SessionAt(std::int64_t tokens, std::uint64_t seed);
  std::vector<std::int32_t> RandomIds(std::int64_t count, std::uint64_t stream) const;
  double RunPrompt(std::int64_t prefix, std::int64_t tokens);

  std::shared_ptr<const Checkpoint> checkpoint_;
  BenchOptions options_;
  OpProfile profile_;
  std::unique_ptr<fast::FastEngine> engine_;
  Rates rates_;
  double load_seconds_ = 0;
};

// Share of the profiled device time of the operations named `op`.
double ShareOf(const Figure& figure, const std::string& op);

}  // namespace lockstep::bench
