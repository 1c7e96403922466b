#include "fast/scheduler.h"

#include <algorithm>
#include <utility>

#include "model/error.h"

namespace lockstep::fast {

Scheduler::Scheduler(FastEngine& engine, const SchedulerOptions& options) : engine_(engine), options_(options) {
  // A step that only decodes would leave the prompts without a row.
  if (options.max_sequences < 1 || options.max_sequences >= engine.step_rows()) {
    throw InputError("max_sequences: expected 1 to " + std::to_string(engine.step_rows() - 1) +
                     ", below the rows of a step");
  }
  if (options.patience < 1) throw InputError("patience: expected at least 1 step");
}

std::int64_t Scheduler::Submit(Request request) {
  if (request.prompt.empty()) throw InputError("prompt: expected at least one token id");
  if (request.max_tokens < 1) throw InputError("max_tokens: expected at least 1");
  CheckIds(request.prompt, 0, engine_.config());
  CheckSampling(request.sampling);
  if (static_cast<std::int64_t>(request.prompt.size()) > engine_.max_context()) {
    throw InputError("prompt: expected at most " + std::to_string(engine_.max_context()) +
                     " tokens, the context of this engine, found " + std::to_string(request.prompt.size()));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  const std::lock_guard lock(mutex_);
  sequence->number = next_number_++;
  queue_.push_back(std::move(sequence));
  return queue_.back()->number;
}

void Scheduler::Cancel(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  const auto mark = [number](const auto& sequences) {
    for (const auto& sequence : sequences) {
      if (sequence->number == number) sequence->cancelled = true;
    }
  };
  mark(queue_);
  mark(sequences_);
}

bool Scheduler::RunStep() {
  DropCancelled();
  Admit();
  if (sequences_.empty()) return queued() > 0;
  PlanStep();
  RunPlanned();
  return true;
}

// --- admission

std::size_t Scheduler::queued() {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

// What callbacks submit in the meantime waits for the next step.
void Scheduler::Admit() {
  for (std::size_t waiting = queued();
       waiting > 0 && static_cast<int>(sequences_.size()) < options_.max_sequences; --waiting) {
    Sequence* sequence = nullptr;
    {
      const std::lock_guard lock(mutex_);
      sequences_.push_back(std::move(queue_.front()));
      queue_.pop_front();
      sequence = sequences_.back().get();
    }
    if (sequence->cancelled) {
      Finish(*sequence, FinishReason::kCancelled);
    } else {
      Open(*sequence);
    }
  }
}

// All memory that the answer can need is taken here, so that nothing fails half-way.
void Scheduler::Open(Sequence& sequence) {
  const auto prompt = static_cast<std::int64_t>(sequence.request.prompt.size());
  // The last token of an answer is not processed.
  const std::int64_t end = std::min(prompt + sequence.request.max_tokens - 1, engine_.max_context());
  try {
    sequence.session.reset(static_cast<FastSession*>(engine_.NewSession().release()));
    sequence.session->state().Keep(end);
  } catch (const InputError& error) {
    Finish(sequence, FinishReason::kRefused, error.what());
  }
}

void Scheduler::DropCancelled() {
  for (std::size_t i = sequences_.size(); i-- > 0;) {
    if (sequences_[i]->cancelled) Finish(*sequences_[i], FinishReason::kCancelled);
  }
}

void Scheduler::Finish(Sequence& sequence, FinishReason reason, const std::string& message) {
  std::unique_ptr<Sequence> finished;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(sequences_.begin(), sequences_.end(), [&](const auto& s) { return s.get() == &sequence; });
    finished = std::move(*found);
    sequences_.erase(found);
  }
  finished->session.reset();
  if (finished->request.on_finish) finished->request.on_finish(reason, message);
}

// --- a step

void Scheduler::PlanStep() {
  planned_.clear();
  segments_.clear();
  std::int64_t budget = engine_.step_rows();
  for (const auto& sequence : sequences_) {
    if (!sequence->in_prompt() && Plan(*sequence, 1)) --budget;
  }
  for (Sequence* sequence : WaitingPrompts()) {
    const bool served = budget > 0 && Plan(*sequence, budget);
    if (served) budget -= static_cast<std::int64_t>(segments_.back().ids.size());
    sequence->waited = served ? 0 : sequence->waited + 1;
  }
}

// Prompts in the order in which they get rows: those out of patience, the longest waiting first; then the
// oldest.
std::vector<Scheduler::Sequence*> Scheduler::WaitingPrompts() const {
  std::vector<Sequence*> waiting;
  for (const auto& sequence : sequences_) {
    if (sequence->in_prompt()) waiting.push_back(sequence.get());
  }
  const auto urgency = [this](const Sequence* s) { return s->waited >= options_.patience ? s->waited : 0; };
  std::stable_sort(waiting.begin(), waiting.end(),
                   [&](const Sequence* a, const Sequence* b) { return urgency(a) > urgency(b); });
  return waiting;
}

// Adds the sequence's next rows, at most `budget`, to the step. False if they do not fit beside what is there.
bool Scheduler::Plan(Sequence& sequence, std::int64_t budget) {
  const auto tokens = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t position = sequence.session->position();
  Segment segment;
  segment.state = &sequence.session->state();
  segment.prompt_end = tokens;
  segment.last_rows = 1;
  sequence.draw = DrawAt(sequence.request.sampling, tokens);
  if (!HasPenalties(sequence.request.sampling)) segment.draw = &sequence.draw;
  const std::int64_t rows =
      ChunkRows(position, tokens, segment.last_rows, std::min(budget, sequence.remaining()));
  segment.ids =
      std::span(sequence.tokens).subspan(static_cast<std::size_t>(position), static_cast<std::size_t>(rows));
  segments_.push_back(std::move(segment));
  if (engine_.Fits(segments_)) {
    planned_.push_back(&sequence);
    return true;
  }
  segments_.pop_back();
  return false;
}

// A step that fails as a whole runs again one sequence at a time, so that only the one at fault ends.
void Scheduler::RunPlanned() {
  const auto run = [&](std::size_t begin, std::size_t count) {
    const auto abandoned = [&] {
      return std::all_of(planned_.begin() + static_cast<std::ptrdiff_t>(begin),
                         planned_.begin() + static_cast<std::ptrdiff_t>(begin + count),
                         [](const Sequence* s) { return s->cancelled.load(); });
    };
    return engine_.RunStep(std::span(segments_).subspan(begin, count), abandoned);
  };
  std::vector<bool> ran(planned_.size(), false);
  std::vector<std::string> errors(planned_.size());
  try {
    ran.assign(planned_.size(), run(0, planned_.size()));
  } catch (const InputError&) {
    for (std::size_t i = 0; i < planned_.size(); ++i) {
      try {
        ran[i] = run(i, 1);
      } catch (const InputError& error) {
        errors[i] = error.what();
      }
    }
  }
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    if (!errors[i].empty()) {
      Finish(*planned_[i], FinishReason::kFailed, errors[i]);
    } else if (ran[i]) {
      Deliver(*planned_[i], segments_[i]);
    }
  }
}

// Chooses the next token if the step reached the end of what is known.
void Scheduler::Deliver(Sequence& sequence, const Segment& segment) {
  if (sequence.remaining() > 0 || sequence.cancelled) return;
  const Request& request = sequence.request;
  const auto position = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int32_t id =
      segment.draw ? segment.drawn : SampleToken(segment.logits, request.sampling, sequence.tokens, sequence.answered(), position);
  if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) {
    return Finish(sequence, FinishReason::kStop);
  }
  sequence.tokens.push_back(id);
  if (request.on_token) request.on_token(id);
  if (sequence.answered() == request.max_tokens || position >= engine_.max_context())
    Finish(sequence, FinishReason::kLength);
}

}  // namespace lockstep::fast
