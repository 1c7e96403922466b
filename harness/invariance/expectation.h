// What the reference says about a model: the logits that every configuration of the fast engine must give.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "harness/check/trace_recorder.h"
#include "model/checkpoint.h"
#include "model/numerics_options.h"

namespace lockstep::harness {

// One sequence and its logits in the reference.
struct Expectation {
  std::vector<std::int32_t> ids;  // the prompt, then what the reference chose greedily
  std::int64_t prompt = 0;        // tokens of the prompt
  std::int64_t vocab = 0;
  std::vector<float> logits;  // [ids][vocab]

  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  // Rows [begin, end): they live as long as this object, so a temporary has none to give.
  std::span<const float> Rows(std::int64_t begin, std::int64_t end) const& {
    return std::span(logits).subspan(static_cast<std::size_t>(begin * vocab),
                                     static_cast<std::size_t>((end - begin) * vocab));
  }
  std::span<const float> Rows(std::int64_t begin, std::int64_t end) const&& = delete;
};

// The two sequences of a check under one arithmetic: the one that is checked in all ways, and one for the
// sessions beside it.
struct Expectations {
  Expectation main, companion;
  std::vector<std::set<std::pair<int, int>>>
      picks;  // [position of main]: (layer, expert) that the token was routed to
};

// Token ids that a vocabulary holds: pseudo-random, with repeated passages so that n-grams and far attention
// have something to find.
std::vector<std::int32_t> MakePrompt(int vocab_size, std::int64_t tokens, std::uint64_t seed);

inline constexpr std::int64_t kDecodeSteps = 8;

// Computes expectations once for each arithmetic and keeps them.
class ReferenceRuns {
 public:
  // `prompt` is not empty. Companions take another prompt of `companion_tokens`.
  ReferenceRuns(std::shared_ptr<const Checkpoint> checkpoint, std::vector<std::int32_t> prompt,
                std::int64_t companion_tokens);

  // Lives as long as this object; a temporary cannot be asked.
  const Expectations& For(const NumericsOptions& numerics) &;
  const Expectations& For(const NumericsOptions& numerics) && = delete;
  // All steps of the main sequence, for diagnosis.
  std::unique_ptr<TraceRecorder> Trace(const NumericsOptions& numerics);

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<std::int32_t> prompt_, companion_;
  std::map<std::string, std::unique_ptr<Expectations>> by_numerics_;
};

}  // namespace lockstep::harness
