#include "harness/invariance/expectation.h"

#include <algorithm>
#include <cstddef>

#include "harness/invariance/configuration.h"
#include "harness/synth/counter_rng.h"
#include "model/engine.h"
#include "model/error.h"
#include "model/greedy.h"
#include "reference/engine.h"

namespace lockstep::harness {
namespace {

std::unique_ptr<Engine> MakeReference(std::shared_ptr<const Checkpoint> checkpoint,
                                      const NumericsOptions& numerics, StepTrace* trace) {
  reference::Options options;
  options.numerics = numerics;
  options.trace = trace;
  return reference::MakeEngine(std::move(checkpoint), options);
}

void AppendTo(Session& session, std::span<const std::int32_t> ids, Expectation* expectation) {
  const std::vector<float> rows = session.Append(ids, static_cast<std::int64_t>(ids.size()));
  expectation->logits.insert(expectation->logits.end(), rows.begin(), rows.end());
}

// The prompt in one piece, then `decode_steps` tokens chosen greedily.
Expectation RunSequence(Engine& engine, const std::vector<std::int32_t>& prompt, std::int64_t decode_steps) {
  Expectation expectation;
  expectation.ids = prompt;
  expectation.prompt = expectation.tokens();
  expectation.vocab = engine.config().vocab_size;
  const std::unique_ptr<Session> session = engine.NewSession();
  AppendTo(*session, prompt, &expectation);
  for (std::int64_t i = 0; i < decode_steps; ++i) {
    const std::int64_t last = expectation.tokens() - 1;
    expectation.ids.push_back(ChooseGreedy(expectation.Rows(last, last + 1)).id);
    AppendTo(*session, {&expectation.ids.back(), 1}, &expectation);
  }
  return expectation;
}

std::vector<std::set<std::pair<int, int>>> PicksOf(const TraceRecorder& routing, std::int64_t tokens) {
  std::vector<std::set<std::pair<int, int>>> picks(static_cast<std::size_t>(tokens));
  for (const StepKey& key : routing.order()) {
    const std::vector<float>& values = routing.reports(key).back();
    for (std::size_t i = 0; i < values.size() / 2; ++i) {
      picks[static_cast<std::size_t>(key.position)].insert({key.layer, static_cast<int>(values[i])});
    }
  }
  return picks;
}

}  // namespace

std::vector<std::int32_t> MakePrompt(int vocab_size, std::int64_t tokens, std::uint64_t seed) {
  const synth::CounterRng rng(seed, "prompt");
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const bool repeat = i >= 16 && rng.Below(2 * i, 3) == 0;
    ids.push_back(
        repeat ? ids[static_cast<std::size_t>(i - 13)]
               : static_cast<std::int32_t>(rng.Below(2 * i + 1, static_cast<std::uint32_t>(vocab_size))));
  }
  return ids;
}

ReferenceRuns::ReferenceRuns(std::shared_ptr<const Checkpoint> checkpoint, std::vector<std::int32_t> prompt,
                             std::int64_t companion_tokens)
    : checkpoint_(std::move(checkpoint)),
      prompt_(std::move(prompt)),
      companion_(MakePrompt(checkpoint_->config.vocab_size, companion_tokens, 7)) {
  LOCKSTEP_CHECK(!prompt_.empty() && companion_tokens > 0);
}

const Expectations& ReferenceRuns::For(const NumericsOptions& numerics) & {
  std::unique_ptr<Expectations>& slot = by_numerics_[NameOf(numerics)];
  if (!slot) {
    slot = std::make_unique<Expectations>();
    TraceRecorder routing{std::string(step::kRouter)};
    slot->main = RunSequence(*MakeReference(checkpoint_, numerics, &routing), prompt_, kDecodeSteps);
    slot->picks = PicksOf(routing, slot->main.tokens());
    slot->companion = RunSequence(*MakeReference(checkpoint_, numerics, nullptr), companion_, 0);
  }
  return *slot;
}

std::unique_ptr<TraceRecorder> ReferenceRuns::Trace(const NumericsOptions& numerics) {
  auto recorder = std::make_unique<TraceRecorder>();
  RunSequence(*MakeReference(checkpoint_, numerics, recorder.get()), prompt_, kDecodeSteps);
  return recorder;
}

}  // namespace lockstep::harness
