#include "harness/bench/bench.h"

#include <algorithm>
#include <chrono>

#include "harness/bench/synthetic_state.h"
#include "kernels/random_exl3/counter_rng.h"
#include "model/error.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr auto kNever = [] { return false; };

// How a step draws its tokens, as the model cards recommend; what follows is made up all the same.
constexpr kernels::SamplingRow kDraw = {.temperature = 1.0f, .draw = std::uint64_t{1} << 52};

// Sequences that are decoded together, one random token a step.
class DecodeBatch {
 public:
  DecodeBatch(fast::FastEngine& engine, std::vector<std::unique_ptr<fast::FastSession>> sessions, std::uint64_t seed)
      : engine_(engine), sessions_(std::move(sessions)), rng_(seed, "decode") {
    next_.resize(sessions_.size());
  }

  double Step() {
    segments_.resize(sessions_.size());
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      next_[i] = static_cast<std::int32_t>(rng_.Below(draws_++, static_cast<std::uint32_t>(engine_.config().vocab_size)));
      fast::Segment& segment = segments_[i];
      segment.state = &sessions_[i]->state();
      segment.ids = {&next_[i], 1};
      segment.prompt_end = segment.state->position + 1;
      segment.last_rows = 1;
      segment.draw = &kDraw;
    }
    const auto begin = Clock::now();
    LOCKSTEP_CHECK(engine_.RunStep(segments_, kNever));
    return SecondsSince(begin);
  }

 private:
  fast::FastEngine& engine_;
  std::vector<std::unique_ptr<fast::FastSession>> sessions_;
  std::vector<fast::Segment> segments_;
  std::vector<std::int32_t> next_;
  kernels::CounterRng rng_;
  std::int64_t draws_ = 0;
};

}  // namespace

Bench::Bench(std::shared_ptr<const Checkpoint> checkpoint, const BenchOptions& options) : checkpoint_(std::move(checkpoint)), options_(options) {
  options_.engine.max_context = options_.max_context;
  const auto begin = Clock::now();
  engine_ = std::make_unique<fast::FastEngine>(checkpoint_, options_.engine, profile_.Backends());
  load_seconds_ = SecondsSince(begin);
  rates_ = MeasureRates(profile_.backend(), options_.engine.device.kind == kernels::DeviceSpec::Kind::kCuda);
}

std::vector<std::int32_t> Bench::RandomIds(std::int64_t count, std::uint64_t stream) const {
  const kernels::CounterRng rng(options_.seed + stream, "prompt");
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int32_t>(rng.Below(i, static_cast<std::uint32_t>(engine_->config().vocab_size))));
  }
  return ids;
}

std::unique_ptr<fast::FastSession> Bench::SessionAt(std::int64_t tokens, std::uint64_t seed) {
  std::unique_ptr<fast::FastSession> session(static_cast<fast::FastSession*>(engine_->NewSession().release()));
  if (tokens > 0) FillState(*engine_, profile_.backend(), tokens, seed, session.get());
  return session;
}

double Bench::RunPrompt(std::int64_t prefix, std::int64_t tokens) {
  const auto session = SessionAt(prefix, options_.seed);
  const std::vector<std::int32_t> ids = RandomIds(tokens, static_cast<std::uint64_t>(prefix));
  const auto begin = Clock::now();
  session->Append(ids, 1);
  return SecondsSince(begin);
}

Figure Bench::Prompt(std::int64_t prefix, std::int64_t tokens) {
  Figure figure;
  figure.what = prefix > 0 ? "suffix" : "prefill";
  figure.context = prefix;
  figure.tokens = tokens;
  RunPrompt(prefix, std::min(tokens, engine_->step_rows()));  // scratch memory, page tables, clocks
  engine_->ResetStats();
  figure.seconds = RunPrompt(prefix, tokens);
  figure.stats = engine_->stats();
  figure.limit = LimitOf(PromptWork(*checkpoint_, prefix, tokens), static_cast<double>(figure.stats.experts.bytes_copied), rates_);
  if (!options_.profile_steps) return figure;
  profile_.Start();
  figure.profiled_seconds = RunPrompt(prefix, tokens);
  figure.profile = profile_.Stop();
  return figure;
}

Figure Bench::Decode(std::int64_t context, std::int64_t batch) {
  constexpr int kWarmUp = 3;
  Figure figure;
  figure.what = "decode";
  figure.context = context;
  figure.tokens = batch;
  figure.steps = options_.decode_steps;
  std::vector<std::unique_ptr<fast::FastSession>> sessions;
  for (std::int64_t i = 0; i < batch; ++i) sessions.push_back(SessionAt(context, options_.seed + static_cast<std::uint64_t>(i)));
  DecodeBatch decode(*engine_, std::move(sessions), options_.seed);
  for (int i = 0; i < kWarmUp; ++i) decode.Step();
  engine_->ResetStats();
  std::vector<double> seconds;
  for (int i = 0; i < options_.decode_steps; ++i) seconds.push_back(decode.Step());
  figure.stats = engine_->stats();
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  figure.seconds = seconds[seconds.size() / 2];
  const double streamed = static_cast<double>(figure.stats.experts.bytes_copied) / options_.decode_steps;
  figure.limit = LimitOf(DecodeWork(*checkpoint_, context, batch), streamed, rates_);
  if (!options_.profile_steps) return figure;
  engine_->SetGraphs(fast::Graphs::kOff);
  profile_.Start();
  for (int i = 0; i < options_.decode_steps; ++i) figure.profiled_seconds += decode.Step();
  figure.profile = profile_.Stop();
  engine_->SetGraphs(options_.engine.graphs);
  return figure;
}

double ShareOf(const Figure& figure, const std::string& op) {
  double part = 0, all = 0;
  for (const OpTime& time : figure.profile) {
    all += time.seconds;
    if (time.op == op) part += time.seconds;
  }
  return all > 0 ? part / all : 0;
}

}  // namespace lockstep::bench
