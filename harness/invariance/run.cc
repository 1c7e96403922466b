#include "harness/invariance/run.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "harness/check/same_bits.h"
#include "harness/synth/counter_rng.h"
#include "model/error.h"

namespace lockstep::harness {
namespace {

using fast::FastEngine;
using fast::FastSession;
using fast::Segment;

constexpr std::int64_t kCompanionRows = 3;  // most rows of one companion in a step

// Decisions of a run, the same each time.
class Decisions {
 public:
  explicit Decisions(std::uint64_t seed) : rng_(seed, "decisions") {}
  std::int64_t Below(std::int64_t bound) { return rng_.Below(next_++, static_cast<std::uint32_t>(bound)); }

 private:
  synth::CounterRng rng_;
  std::int64_t next_ = 0;
};

struct DifferenceFound {
  std::string what;
};

// Lets steps through while it is open: those of other sequences would be taken for the main one's.
class TraceGate : public StepTrace {
 public:
  explicit TraceGate(StepTrace* next) : next_(next) {}
  void OnStep(std::string_view step, int layer, std::int64_t position, std::span<const float> values) override {
    if (open) next_->OnStep(step, layer, position, values);
  }
  bool open = true;

 private:
  StepTrace* next_;
};

// Closes a gate for a while.
class Unseen {
 public:
  explicit Unseen(TraceGate& gate) : gate_(gate), was_open_(std::exchange(gate.open, false)) {}
  ~Unseen() { gate_.open = was_open_; }

 private:
  TraceGate& gate_;
  bool was_open_;
};

// A sequence on its way through a prompt, and what it must give.
struct Feed {
  std::unique_ptr<FastSession> session;
  const Expectation* expectation = nullptr;
  std::int64_t end = 0;        // where the running prompt ends
  std::int64_t last_rows = 0;  // logits wanted of it

  std::int64_t position() const { return session->position(); }
  bool done() const { return position() == end; }
  void Begin(std::int64_t new_end, std::int64_t rows) {
    end = new_end;
    last_rows = rows;
  }
  Segment NextChunk(std::int64_t rows) const {
    Segment segment;
    segment.state = &session->state();
    segment.prompt_end = end;
    segment.last_rows = last_rows;
    const std::int64_t count = fast::ChunkRows(position(), end, last_rows, std::min(rows, end - position()));
    segment.ids = std::span(expectation->ids)
                      .subspan(static_cast<std::size_t>(position()), static_cast<std::size_t>(count));
    return segment;
  }
  Feed Fork() const {
    Feed copy;
    copy.session.reset(static_cast<FastSession*>(session->Fork().release()));
    copy.expectation = expectation;
    copy.end = end;
    copy.last_rows = last_rows;
    return copy;
  }
};

void Compare(const Segment& segment, const Feed& feed, const char* who) {
  const std::int64_t end = feed.position(), begin = end - static_cast<std::int64_t>(segment.ids.size());
  const std::int64_t first = std::max(begin, segment.prompt_end - segment.last_rows);
  const Expectation& expected = *feed.expectation;
  for (std::int64_t p = std::min(first, end); p < end; ++p) {
    const auto row = static_cast<std::size_t>((p - first) * expected.vocab),
               width = static_cast<std::size_t>(expected.vocab);
    const bool there = segment.logits.size() >= row + width;
    const auto got = there ? std::span(segment.logits).subspan(row, width) : std::span<const float>();
    const auto difference = FindDifference(got, expected.Rows(p, p + 1));
    if (difference)
      throw DifferenceFound{std::string(who) + "logits of position " + std::to_string(p) + ": " +
                            difference->Describe()};
  }
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(0, end - first) * expected.vocab);
  if (segment.logits.size() != wanted) throw DifferenceFound{std::string(who) + "more logits than asked for"};
}

// One engine and the sequences that a configuration runs on it.
class Run {
 public:
  Run(const std::shared_ptr<const Checkpoint>& checkpoint, const Configuration& configuration,
      const Expectations& expectations, StepTrace* trace, const fast::BackendFactory& make_backend)
      : configuration_(configuration),
        expectations_(expectations),
        decisions_(configuration.seed),
        gate_(trace) {
    fast::EngineOptions options = configuration.Options();
    options.chunk_rows += configuration.companions * kCompanionRows;
    options.trace = trace == nullptr ? nullptr : &gate_;
    options.max_context = std::max(expectations.main.tokens(), expectations.companion.tokens()) + kForeignRows;
    engine_ = std::make_unique<FastEngine>(checkpoint, options, make_backend);
    for (int i = 0; i < configuration.companions; ++i) companions_.push_back(NewCompanion());
  }

  void RunMain();
  void RunBesidePoison();

 private:
  static constexpr std::int64_t kForeignRows =
      40;  // most tokens of other text that a step to be cancelled takes

  Feed NewFeed(const Expectation& expectation) {
    Feed feed;
    feed.session.reset(static_cast<FastSession*>(engine_->NewSession().release()));
    feed.expectation = &expectation;
    return feed;
  }
  Feed NewCompanion();
  std::vector<std::int64_t> Turns();
  void RunTurn(Feed& feed, bool forks);
  void Drive(Feed& feed);
  void Step(Feed& feed);
  void TryForeign(Feed& feed);
  std::vector<Segment> WithCompanions(const Segment& main);
  Segment CompanionChunk(int index);
  void MoveExperts();
  std::int64_t WantedRows(std::int64_t rows) const;

  const Configuration& configuration_;
  const Expectations& expectations_;
  Decisions decisions_;
  TraceGate gate_;
  std::unique_ptr<FastEngine> engine_;
  std::vector<Feed> companions_;
};

std::int64_t Run::WantedRows(std::int64_t rows) const {
  return configuration_.wanted == Wanted::kAll    ? rows
         : configuration_.wanted == Wanted::kSome ? (rows + 2) / 3
                                                  : 1;
}

// A session somewhere in the companions' sequence.
Feed Run::NewCompanion() {
  const Unseen unseen(gate_);
  Feed feed = NewFeed(expectations_.companion);
  feed.Begin(decisions_.Below(expectations_.companion.tokens() - 2 * kCompanionRows), 1);
  while (!feed.done()) {
    Segment chunk = feed.NextChunk(engine_->step_rows());
    engine_->RunStep({&chunk, 1}, [] { return false; });
    Compare(chunk, feed, "companion: ");
  }
  return feed;
}

// Ends of the turns in which the prompt comes: one, two or three.
std::vector<std::int64_t> Run::Turns() {
  const std::int64_t prompt = expectations_.main.prompt;
  std::set<std::int64_t> ends = {prompt};
  for (std::uint64_t i = 0; i < configuration_.seed % 3 && prompt > 1; ++i)
    ends.insert(1 + decisions_.Below(prompt - 1));
  return {ends.begin(), ends.end()};
}

void Run::RunMain() {
  const Expectation& expected = expectations_.main;
  Feed feed = NewFeed(expected);
  for (const std::int64_t end : Turns()) {
    feed.Begin(end, WantedRows(end - feed.position()));
    RunTurn(feed, configuration_.forks);
  }
  for (std::int64_t end = expected.prompt + 1; end <= expected.tokens(); ++end) {
    feed.Begin(end, 1);
    RunTurn(feed, /*forks=*/false);
  }
}

// With forks: one copy from inside the turn is disturbed, another goes on when the session itself has ended the
// turn.
void Run::RunTurn(Feed& feed, bool forks) {
  if (!forks) return Drive(feed);
  const std::int64_t fork_at = feed.position() + decisions_.Below(feed.end - feed.position());
  while (feed.position() < fork_at) Step(feed);
  Feed fork = feed.Fork(), other = feed.Fork();
  TryForeign(other);
  Drive(feed);
  TryForeign(other);
  Drive(fork);
}

void Run::Drive(Feed& feed) {
  while (!feed.done()) Step(feed);
}

void Run::Step(Feed& feed) {
  if (configuration_.placement == Placement::kChanging) MoveExperts();
  if (configuration_.cancels) TryForeign(feed);
  const Segment chunk = feed.NextChunk(configuration_.chunk_rows);
  std::int64_t boundaries = configuration_.cancels && decisions_.Below(2) == 0
                                ? decisions_.Below(engine_->config().num_layers + 1)
                                : -1;
  std::vector<Segment> segments = WithCompanions(chunk);
  while (!engine_->RunStep(segments, [&] { return boundaries-- == 0; })) {
  }
  for (const Segment& segment : segments) {
    if (segment.state == &feed.session->state()) Compare(segment, feed, "");
    for (const Feed& companion : companions_) {
      if (segment.state == &companion.session->state()) Compare(segment, companion, "companion: ");
    }
  }
}

// A step over other tokens that is cancelled at some layer: it must leave no trace.
void Run::TryForeign(Feed& feed) {
  const Unseen unseen(gate_);
  Segment foreign;
  foreign.state = &feed.session->state();
  const std::int64_t tokens = expectations_.companion.tokens();
  const std::int64_t rows = std::min({1 + decisions_.Below(kForeignRows), engine_->step_rows(), tokens});
  const std::int64_t begin = decisions_.Below(tokens - rows + 1);
  foreign.ids = std::span(expectations_.companion.ids)
                    .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows));
  foreign.prompt_end = feed.position() + rows;
  foreign.last_rows =
      std::min(rows, decisions_.Below(2) == 0 ? decisions_.Below(3) : decisions_.Below(rows + 1));
  std::int64_t boundaries = decisions_.Below(engine_->config().num_layers + 1);
  const std::int64_t before = feed.position();
  if (engine_->RunStep({&foreign, 1}, [&] { return boundaries-- == 0; }) || feed.position() != before) {
    throw DifferenceFound{"a cancelled step moved the session"};
  }
}

Segment Run::CompanionChunk(int index) {
  Feed& feed = companions_[static_cast<std::size_t>(index)];
  const std::int64_t tokens = feed.expectation->tokens();
  if (feed.position() + kCompanionRows >= tokens) feed = NewCompanion();
  // The first companion decodes, the second takes short prompts whole, the third stays inside a long one.
  const std::int64_t rows = 1 + index % kCompanionRows;
  const std::int64_t end = index % 3 == 2 ? tokens : feed.position() + rows;
  feed.Begin(end, index % 3 == 1 ? rows : 1);
  return feed.NextChunk(rows);
}

std::vector<Segment> Run::WithCompanions(const Segment& main) {
  std::vector<Segment> segments;
  for (int i = 0; i < configuration_.companions; ++i) segments.push_back(CompanionChunk(i));
  segments.insert(segments.begin() + decisions_.Below(configuration_.companions + 1), main);
  return segments;
}

void Run::MoveExperts() {
  const ModelConfig& config = engine_->config();
  for (int moves = 0; moves < 4; ++moves) {
    const int layer = static_cast<int>(decisions_.Below(config.num_layers));
    const int expert = static_cast<int>(decisions_.Below(config.n_routed_experts));
    engine_->experts().SetResident(layer, expert, !engine_->experts().resident(layer, expert));
  }
}

// As long a part of the sequence as leaves experts alone, with those experts poisoned.
void Run::RunBesidePoison() {
  const ModelConfig& config = engine_->config();
  const auto all =
      static_cast<std::size_t>(config.num_layers) * static_cast<std::size_t>(config.n_routed_experts);
  std::set<std::pair<int, int>> picked;
  std::int64_t tokens = 0;
  for (; tokens < expectations_.main.prompt; ++tokens) {
    std::set<std::pair<int, int>> more = picked;
    const auto& picks = expectations_.picks[static_cast<std::size_t>(tokens)];
    more.insert(picks.begin(), picks.end());
    if (tokens > 0 && more.size() == all) break;
    picked = std::move(more);
  }
  for (int l = 0; l < config.num_layers; ++l) {
    for (int e = 0; e < config.n_routed_experts; ++e) {
      if (!picked.contains({l, e})) engine_->experts().Fill(l, e, std::byte{0xff});
    }
  }
  companions_.clear();
  Feed feed = NewFeed(expectations_.main);
  feed.Begin(tokens, tokens);
  while (!feed.done()) {
    Segment chunk = feed.NextChunk(configuration_.chunk_rows);
    engine_->RunStep({&chunk, 1}, [] { return false; });
    Compare(chunk, feed, "beside poisoned experts: ");
  }
}

}  // namespace

std::optional<std::string> RunConfiguration(const std::shared_ptr<const Checkpoint>& checkpoint,
                                            const Configuration& configuration,
                                            const Expectations& expectations, StepTrace* trace,
                                            const fast::BackendFactory& make_backend) {
  try {
    Run run(checkpoint, configuration, expectations, trace, make_backend);
    run.RunMain();
    run.RunBesidePoison();
    return std::nullopt;
  } catch (const DifferenceFound& difference) {
    return difference.what;
  } catch (const InputError& error) {
    return std::string("the fast engine stopped: ") + error.what();
  }
}

std::optional<StepDifference> Diagnose(const std::shared_ptr<const Checkpoint>& checkpoint,
                                       const Configuration& configuration, ReferenceRuns& reference,
                                       const fast::BackendFactory& make_backend) {
  const std::unique_ptr<TraceRecorder> expected = reference.Trace(configuration.numerics);
  Configuration alone = configuration;
  alone.companions = 0;
  for (const Configuration& tried : {alone, configuration}) {
    TraceRecorder trace;
    RunConfiguration(checkpoint, tried, reference.For(tried.numerics), &trace, make_backend);
    if (const auto difference = FirstDifference(*expected, trace)) return difference;
  }
  return std::nullopt;
}

}  // namespace lockstep::harness
