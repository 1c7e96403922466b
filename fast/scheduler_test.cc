// The scheduler: every request gets the tokens it gets alone, whatever runs beside it, and waits no longer than
// promised.
#include "fast/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "harness/invariance/expectation.h"
#include "harness/invariance/small_model.h"
#include "harness/selftest/broken_backend.h"
#include "harness/synth/counter_rng.h"
#include "model/test_util.h"

namespace lockstep::fast {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kContext = 512;

std::shared_ptr<const Checkpoint> Model() {
  static const TestDirectory directory;
  static const auto model = harness::MakeSmallModel(
      {.layers = 8, .window = 8, .max_positions = kContext, .hidden = 64, .seed = 1}, directory.path());
  return model;
}

EngineOptions Options(std::int64_t chunk_rows = 24) {
  EngineOptions options;
  options.device.isa = BestIsa();
  options.device.threads = 1;
  options.numerics.profile = Profile::kFma;
  options.chunk_rows = chunk_rows;
  options.poison = true;
  return options;
}

Ids Prompt(std::int64_t tokens, std::uint64_t seed) {
  return harness::MakePrompt(Model()->config.vocab_size, tokens, seed);
}

struct Answer {
  Ids ids;
  std::optional<FinishReason> reason;
  std::string message;
  int first_step = -1;  // in which the first token came
};

// What a request gives alone: a session and the sampler, no scheduler.
Ids Alone(const Request& request) {
  FastEngine engine(Model(), Options(1000));
  const auto session = engine.NewSession();
  Ids tokens = request.prompt, answer;
  std::vector<float> logits = session->Append(tokens, 1);
  while (true) {
    const auto position = static_cast<std::int64_t>(tokens.size());
    const std::int32_t id =
        SampleToken(logits, request.sampling, tokens, static_cast<std::int64_t>(answer.size()), position);
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end())
      return answer;
    tokens.push_back(id);
    answer.push_back(id);
    if (static_cast<std::int64_t>(answer.size()) == request.max_tokens || position >= kContext) return answer;
    logits = session->Append({&id, 1}, 1);
  }
}

// A scheduler and everything it has delivered.
class Bench {
 public:
  explicit Bench(const EngineOptions& options, const SchedulerOptions& scheduler = {},
                 const BackendFactory& backend = &kernels::MakeBackend)
      : engine_(Model(), options, backend), scheduler_(engine_, scheduler) {}

  std::int64_t Submit(Request request) {
    auto answer = std::make_shared<Answer>();
    request.on_token = [this, answer](std::int32_t id) {
      if (answer->ids.empty()) answer->first_step = steps_;
      answer->ids.push_back(id);
    };
    request.on_finish = [answer](FinishReason reason, const std::string& message) {
      EXPECT_FALSE(answer->reason.has_value()) << "finished twice";
      answer->reason = reason;
      answer->message = message;
    };
    const std::int64_t number = scheduler_.Submit(std::move(request));
    answers_[number] = answer;
    return number;
  }
  bool Step() {
    ++steps_;
    return scheduler_.RunStep();
  }
  void RunAll() {
    while (Step()) {
    }
  }
  void Run(int steps) {
    for (int i = 0; i < steps; ++i) Step();
  }
  const Answer& answer(std::int64_t number) const { return *answers_.at(number); }
  Scheduler& scheduler() { return scheduler_; }
  FastEngine& engine() { return engine_; }
  int steps() const { return steps_; }

 private:
  FastEngine engine_;
  Scheduler scheduler_;
  std::map<std::int64_t, std::shared_ptr<Answer>> answers_;
  int steps_ = 0;
};

Request Greedy(Ids prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

Request Sampled(Ids prompt, std::int64_t max_tokens, std::uint64_t seed) {
  Request request = Greedy(std::move(prompt), max_tokens);
  request.sampling.temperature = 0.9f;
  request.sampling.top_p = 0.95f;
  request.sampling.top_k = 40;
  request.sampling.min_p = 0.01f;
  request.sampling.repetition_penalty = 1.1f;
  request.sampling.presence_penalty = 0.2f;
  request.sampling.frequency_penalty = 0.1f;
  request.sampling.seed = seed;
  return request;
}

std::vector<Request> MixedRequests() {
  std::vector<Request> requests;
  for (const std::int64_t tokens : {40, 1, 130, 7, 75, 24}) {
    const auto seed = static_cast<std::uint64_t>(requests.size());
    requests.push_back(seed % 2 == 0 ? Greedy(Prompt(tokens, seed), 12)
                                     : Sampled(Prompt(tokens, seed), 15, seed));
  }
  return requests;
}

// --- tokens

TEST(SchedulerTest, TogetherEqualsAlone) {
  Bench bench(Options());
  std::vector<std::int64_t> numbers;
  for (const Request& request : MixedRequests()) {
    numbers.push_back(bench.Submit(request));
    bench.Run(2);
  }
  bench.RunAll();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(bench.answer(numbers[i]).ids, Alone(MixedRequests()[i])) << "request " << i;
    EXPECT_EQ(bench.answer(numbers[i]).reason, FinishReason::kLength);
  }
}

TEST(SchedulerTest, TheSameSeedGivesTheSameTokensAndAnotherOneDoesNot) {
  Bench bench(Options());
  const auto a = bench.Submit(Sampled(Prompt(30, 9), 20, 5)), b = bench.Submit(Sampled(Prompt(30, 9), 20, 5));
  const auto c = bench.Submit(Sampled(Prompt(30, 9), 20, 6));
  bench.RunAll();
  EXPECT_EQ(bench.answer(a).ids, bench.answer(b).ids);
  EXPECT_NE(bench.answer(a).ids, bench.answer(c).ids);
}

TEST(SchedulerTest, StopIdsEndAnAnswerUnreported) {
  const Request request = Greedy(Prompt(20, 3), 30);
  const Ids alone = Alone(request);
  Request stopping = request;
  stopping.stop_ids = {alone[4]};
  Bench bench(Options());
  const auto number = bench.Submit(stopping);
  bench.RunAll();
  EXPECT_EQ(bench.answer(number).reason, FinishReason::kStop);
  const auto first = std::find(alone.begin(), alone.end(), alone[4]);
  EXPECT_EQ(bench.answer(number).ids, Ids(alone.begin(), first));
}

TEST(SchedulerTest, TheContextEndsAnAnswer) {
  const Request request = Greedy(Prompt(kContext - 3, 3), 30);
  Bench bench(Options(200));
  const auto number = bench.Submit(request);
  bench.RunAll();
  EXPECT_EQ(bench.answer(number).reason, FinishReason::kLength);
  EXPECT_EQ(bench.answer(number).ids.size(), 4u);  // the last is not processed
  EXPECT_EQ(bench.answer(number).ids, Alone(request));
}

// --- cancellation

class CancelTest : public testing::TestWithParam<int> {};

TEST_P(CancelTest, LeavesTheOthersAlone) {
  const std::vector<Request> requests = MixedRequests();
  Bench bench(Options());
  std::vector<std::int64_t> numbers;
  for (const Request& request : requests) numbers.push_back(bench.Submit(request));
  bench.Run(GetParam());
  bench.scheduler().Cancel(numbers[2]);
  bench.Run(1);
  bench.scheduler().Cancel(numbers[3]);
  bench.RunAll();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Answer& answer = bench.answer(numbers[i]);
    const Ids alone = Alone(requests[i]);
    ASSERT_TRUE(answer.reason.has_value());
    if (answer.reason == FinishReason::kCancelled) {
      EXPECT_TRUE(i == 2 || i == 3);
      EXPECT_TRUE(std::equal(answer.ids.begin(), answer.ids.end(), alone.begin()));
    } else {
      EXPECT_EQ(answer.ids, alone) << "request " << i;
    }
  }
  EXPECT_EQ(bench.engine().kv().page_bytes_in_use(), 0u);
}

INSTANTIATE_TEST_SUITE_P(AfterSteps, CancelTest, testing::Values(0, 1, 3, 6, 11, 17));

TEST(SchedulerTest, AnswersCanCancelAndSubmitFromTheirCallbacks) {
  FastEngine engine(Model(), Options());
  Scheduler scheduler(engine, {});
  const Request first = Greedy(Prompt(10, 1), 20), second = Greedy(Prompt(12, 2), 5);
  Ids got, follow_up;
  FinishReason reason = FinishReason::kLength;
  std::int64_t number = 0;
  Request request = first;
  request.on_token = [&](std::int32_t id) {
    got.push_back(id);
    if (got.size() == 3) scheduler.Cancel(number);
  };
  request.on_finish = [&](FinishReason why, const std::string&) {
    reason = why;
    Request next = second;
    next.on_token = [&](std::int32_t id) { follow_up.push_back(id); };
    scheduler.Submit(next);
  };
  number = scheduler.Submit(request);
  while (scheduler.RunStep()) {
  }
  EXPECT_EQ(reason, FinishReason::kCancelled);
  EXPECT_EQ(got.size(), 3u);
  EXPECT_EQ(follow_up, Alone(second));
}

TEST(SchedulerTest, ThreadsMaySubmitAndCancelWhileStepsRun) {
  Bench bench(Options());
  const Request steady = Greedy(Prompt(60, 4), 25);
  const auto number = bench.Submit(steady);
  std::thread other([&] {
    for (std::uint64_t i = 0; i < 12; ++i)
      bench.scheduler().Cancel(bench.scheduler().Submit(Greedy(Prompt(20, i), 5)));
  });
  bench.RunAll();
  other.join();
  bench.RunAll();
  EXPECT_EQ(bench.answer(number).ids, Alone(steady));
}

// --- memory

TEST(SchedulerTest, WhatDoesNotFitIsRefusedAndNobodyNoticesIt) {
  const Request a = Greedy(Prompt(90, 1), 20), b = Sampled(Prompt(50, 2), 20, 3),
                big = Greedy(Prompt(300, 3), 100);
  EngineOptions options = Options();
  {
    Bench measure(options);
    measure.Submit(a);
    measure.Submit(b);
    measure.Step();
    options.page_memory = measure.engine().kv().page_bytes_in_use() + 4096;
  }
  Bench bench(options);
  const auto first = bench.Submit(a), second = bench.Submit(b);
  bench.Run(3);
  const auto third = bench.Submit(big);
  bench.Run(1);
  EXPECT_EQ(bench.answer(third).reason, FinishReason::kRefused);
  EXPECT_NE(bench.answer(third).message.find("out of KV pages"), std::string::npos)
      << bench.answer(third).message;
  EXPECT_TRUE(bench.answer(third).ids.empty());
  bench.RunAll();
  EXPECT_EQ(bench.answer(first).ids, Alone(a));
  EXPECT_EQ(bench.answer(second).ids, Alone(b));
}

TEST(SchedulerTest, RefusedRequestsTakeNothing) {
  EngineOptions options = Options();
  options.page_memory = 20000;
  Bench bench(options);
  const auto big = bench.Submit(Greedy(Prompt(400, 3), 100));
  bench.Run(1);
  ASSERT_EQ(bench.answer(big).reason, FinishReason::kRefused);
  EXPECT_EQ(bench.engine().kv().page_bytes_in_use(), 0u);
  const Request small = Greedy(Prompt(20, 1), 5);
  const auto number = bench.Submit(small);
  bench.RunAll();
  EXPECT_EQ(bench.answer(number).ids, Alone(small));
}

// --- fairness

TEST(SchedulerTest, AShortPromptDoesNotWaitForALongOne) {
  constexpr int kPatience = 3;
  Bench bench(Options(16), {.max_sequences = 8, .patience = kPatience});
  bench.Submit(Greedy(Prompt(450, 1), 2));
  bench.Run(2);
  const int submitted = bench.steps();
  const auto brief = bench.Submit(Greedy(Prompt(8, 2), 1));
  bench.RunAll();
  EXPECT_LE(bench.answer(brief).first_step - submitted, kPatience + 1);
}

// The bound of RunStep's comment: patience, and one step for each prompt that has waited longer.
TEST(SchedulerTest, EveryWaitingPromptIsServedWithinTheBound) {
  constexpr int kPatience = 2, kBriefs = 5;
  Bench bench(Options(16), {.max_sequences = 8, .patience = kPatience});
  bench.Submit(Greedy(Prompt(450, 1), 1));
  std::vector<std::int64_t> briefs;
  for (int i = 0; i < kBriefs; ++i) briefs.push_back(bench.Submit(Greedy(Prompt(16, 2), 1)));
  bench.RunAll();
  for (int i = 0; i < kBriefs; ++i) {
    // 16 tokens may need a second turn when a decode row shares the step.
    EXPECT_LE(bench.answer(briefs[static_cast<std::size_t>(i)]).first_step, 2 * (kPatience + i + 1)) << i;
  }
}

TEST(SchedulerTest, DecodeGoesOnInEveryStep) {
  Bench bench(Options(16), {.max_sequences = 4, .patience = 4});
  const auto talker = bench.Submit(Greedy(Prompt(5, 1), 12));
  bench.Run(1);
  bench.Submit(Greedy(Prompt(400, 2), 1));
  for (std::size_t tokens = 1; tokens <= 10; ++tokens) {
    EXPECT_EQ(bench.answer(talker).ids.size(), tokens);
    bench.Run(1);
  }
}

TEST(SchedulerTest, TheQueueWaitsForAFreeSequence) {
  Bench bench(Options(16), {.max_sequences = 2, .patience = 2});
  const Request request = Greedy(Prompt(20, 1), 6);
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 5; ++i) numbers.push_back(bench.Submit(request));
  bench.RunAll();
  for (const auto number : numbers) EXPECT_EQ(bench.answer(number).ids, Alone(request));
}

// --- random schedules

class RandomScheduleTest : public testing::TestWithParam<std::uint64_t> {};

// Requests come, and some are cancelled, at random steps; page memory is short, so that some are refused.
TEST_P(RandomScheduleTest, EveryAnswerIsTheOneItGetsAlone) {
  const synth::CounterRng rng(GetParam(), "schedule");
  std::int64_t draws = 0;
  const auto below = [&](std::uint32_t bound) { return static_cast<std::int64_t>(rng.Below(draws++, bound)); };
  EngineOptions options = Options(8 + below(40));
  options.page_shift = static_cast<int>(below(5));
  options.page_memory = static_cast<std::size_t>(60000 + below(120000));
  Bench bench(options,
              {.max_sequences = static_cast<int>(1 + below(7)), .patience = static_cast<int>(1 + below(4))});
  std::vector<std::pair<std::int64_t, Request>> requests;
  for (int step = 0; step < 60; ++step) {
    if (below(4) == 0) {
      const auto seed = static_cast<std::uint64_t>(below(1000));
      Ids prompt = Prompt(1 + below(below(4) == 0 ? 200 : 40), seed);
      requests.emplace_back(0, below(2) == 0 ? Greedy(std::move(prompt), 1 + below(20))
                                             : Sampled(std::move(prompt), 1 + below(20), seed));
      requests.back().first = bench.Submit(requests.back().second);
    }
    if (!requests.empty() && below(12) == 0) {
      bench.scheduler().Cancel(
          requests[static_cast<std::size_t>(below(static_cast<std::uint32_t>(requests.size())))].first);
    }
    bench.Run(1);
  }
  bench.RunAll();
  for (const auto& [number, request] : requests) {
    const Answer& answer = bench.answer(number);
    ASSERT_TRUE(answer.reason.has_value()) << number;
    const Ids alone = Alone(request);
    const bool whole = answer.reason == FinishReason::kLength;
    EXPECT_TRUE(whole ? answer.ids == alone : std::equal(answer.ids.begin(), answer.ids.end(), alone.begin()))
        << "request " << number;
    if (answer.reason == FinishReason::kRefused) {
      EXPECT_TRUE(answer.ids.empty());
    }
    EXPECT_NE(answer.reason, FinishReason::kFailed) << answer.message;
  }
  EXPECT_EQ(bench.engine().kv().page_bytes_in_use(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomScheduleTest, testing::Range<std::uint64_t>(1, 9));

// --- failure

constexpr std::int32_t kPoisonId = 95;

// A token whose embedding is not a number, as an activation beyond its format would be.
void EmbedPoison(kernels::Stream& stream, const kernels::EmbedArgs& args) {
  harness::Good().embed(stream, args);
  for (std::int64_t t = 0; t < args.rows; ++t) {
    if (args.ids[t] == kPoisonId) args.stream_TSE[t * args.streams * args.hidden] = 0x7fc0;
  }
}

TEST(SchedulerTest, ASequenceThatFailsDoesNotTakeTheOthersWithIt) {
  const auto without_poison = [](Ids ids) {
    std::replace(ids.begin(), ids.end(), kPoisonId, 1);
    return ids;
  };
  harness::Fault fault;
  fault.kernels = [](kernels::KernelTable& table) { table.embed.run = &EmbedPoison; };
  Bench bench(Options(40), {}, harness::BrokenBackend(fault));
  const Request a = Greedy(without_poison(Prompt(30, 1)), 4), b = Sampled(without_poison(Prompt(25, 2)), 4, 3);
  Request bad = Greedy(without_poison(Prompt(20, 3)), 10);
  bad.prompt.back() = kPoisonId;
  const auto first = bench.Submit(a), failing = bench.Submit(bad), second = bench.Submit(b);
  bench.RunAll();
  EXPECT_EQ(bench.answer(failing).reason, FinishReason::kFailed);
  EXPECT_NE(bench.answer(failing).message.find("NaN"), std::string::npos) << bench.answer(failing).message;
  const Ids got_a = bench.answer(first).ids, got_b = bench.answer(second).ids;
  ASSERT_EQ(
      std::count(got_a.begin(), got_a.end(), kPoisonId) + std::count(got_b.begin(), got_b.end(), kPoisonId), 0);
  EXPECT_EQ(bench.answer(first).reason, FinishReason::kLength);
  EXPECT_EQ(bench.answer(second).reason, FinishReason::kLength);
}

TEST(SchedulerTest, BadRequestsAreRefusedByField) {
  FastEngine engine(Model(), Options());
  Scheduler scheduler(engine, {});
  ExpectInputError([&] { scheduler.Submit(Greedy({}, 1)); }, {"prompt"});
  ExpectInputError([&] { scheduler.Submit(Greedy({1}, 0)); }, {"max_tokens"});
  ExpectInputError([&] { scheduler.Submit(Greedy({1, 96}, 1)); }, {"96"});
  ExpectInputError([&] { scheduler.Submit(Greedy(Prompt(kContext + 1, 1), 1)); }, {std::to_string(kContext)});
  Request request = Greedy({1}, 1);
  request.sampling.top_p = 0;
  ExpectInputError([&] { scheduler.Submit(request); }, {"top_p"});
  ExpectInputError([&] { Scheduler(engine, {.max_sequences = 24, .patience = 1}); }, {"max_sequences"});
  ExpectInputError([&] { Scheduler(engine, {.max_sequences = 2, .patience = 0}); }, {"patience"});
  EXPECT_FALSE(scheduler.RunStep());
}

}  // namespace
}  // namespace lockstep::fast
