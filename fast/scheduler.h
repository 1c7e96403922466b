// Continuous batching: many requests on one engine. Every step takes one token of each running answer and a
// chunk of the prompts that wait, oldest first; no request can change another's tokens, only its time.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "fast/engine.h"
#include "fast/sampler.h"

namespace lockstep::fast {

enum class FinishReason {
  kStop,       // one of stop_ids was chosen
  kLength,     // max_tokens, or the end of the context
  kCancelled,  // by Cancel
  kRefused,    // before any work: no memory for its KV state
  kFailed,     // its activations left the range of their formats
};

struct Request {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 0;
  SamplingParams sampling;
  std::vector<std::int32_t> stop_ids;  // are not reported
  // Called by the thread that runs steps; may call Submit and Cancel. on_finish comes last and once; `message`
  // is empty but for kRefused and kFailed.
  std::function<void(std::int32_t id)> on_token;
  std::function<void(FinishReason reason, const std::string& message)> on_finish;
};

struct SchedulerOptions {
  int max_sequences = 16;  // that have a session at the same time; below the engine's step_rows
  int patience = 4;        // steps without a row after which a waiting prompt goes first
};

class Scheduler {
 public:
  // Throws InputError naming the option that does not fit the engine. Requests that have not finished when it
  // is destroyed never do.
  Scheduler(FastEngine& engine, const SchedulerOptions& options);

  // Takes a request into the queue and returns its number. Any thread. Throws InputError naming the field for
  // an empty prompt, an id outside the vocabulary, max_tokens below 1, a prompt longer than the context, or
  // sampling parameters out of range.
  std::int64_t Submit(Request request);
  // Ends a request: at the next step, or at the next layer when nobody else is in the running one. Any thread;
  // unknown numbers are ignored.
  void Cancel(std::int64_t number);

  // Admits what the queue holds, then runs one step. One thread. False if there was nothing to do.
  //
  // A waiting prompt gets rows at the latest after `patience` steps and one more for each prompt that has
  // waited longer.
  bool RunStep();

 private:
  struct Sequence {
    std::int64_t number = 0;
    Request request;
    std::vector<std::int32_t> tokens;  // prompt and answer; all but the answer's last have been processed
    std::unique_ptr<FastSession> session;
    kernels::SamplingRow draw;  // of the running step
    int waited = 0;  // steps in which its prompt got no row
    std::atomic<bool> cancelled = false;

    std::int64_t answered() const { return static_cast<std::int64_t>(tokens.size() - request.prompt.size()); }
    std::int64_t remaining() const { return static_cast<std::int64_t>(tokens.size()) - session->position(); }
    bool in_prompt() const { return answered() == 0; }
  };

  std::size_t queued();
  void Admit();
  void Open(Sequence& sequence);
  void DropCancelled();
  void PlanStep();
  bool Plan(Sequence& sequence, std::int64_t budget);
  std::vector<Sequence*> WaitingPrompts() const;
  void RunPlanned();
  void Deliver(Sequence& sequence, const Segment& segment);
  void Finish(Sequence& sequence, FinishReason reason, const std::string& message = "");

  FastEngine& engine_;
  SchedulerOptions options_;

  std::mutex
      mutex_;  // guards the queue, the list of sequences (changed by the stepping thread only) and next_number_
  std::deque<std::unique_ptr<Sequence>> queue_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // with a session, oldest first
  std::int64_t next_number_ = 1;

  // Of the running step.
  std::vector<Sequence*> planned_;
  std::vector<Segment> segments_;
};

}  // namespace lockstep::fast
