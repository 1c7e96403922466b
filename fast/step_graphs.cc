#include "fast/step_graphs.h"

#include <algorithm>
#include <utility>

namespace lockstep::fast {
namespace {

// Shapes kept: batch sizes times a few bounds of the context.
constexpr std::size_t kMaxShapes = 64;

}  // namespace

std::int64_t StepGraphs::Epoch() const {
  std::int64_t epoch = 0;
  for (int d = 0; d < backend_.device_count(); ++d) epoch += backend_.device(d).memory_epoch();
  return epoch;
}

StepGraphs::Entry& StepGraphs::Find(const StepShape& shape) {
  const auto found = std::ranges::find_if(entries_, [&](const auto& entry) { return entry->shape == shape; });
  if (found != entries_.end()) return **found;
  if (entries_.size() == kMaxShapes) entries_.erase(entries_.begin());
  entries_.push_back(std::make_unique<Entry>());
  entries_.back()->shape = shape;
  return *entries_.back();
}

void StepGraphs::Begin(const StepShape* shape, std::int64_t generation) {
  mode_ = Mode::kRun;
  entry_ = nullptr;
  if (generation != std::exchange(generation_, generation) || Epoch() != epoch_) {
    entries_.clear();
    epoch_ = Epoch();
  }
  for (int d = 0; d < backend_.device_count(); ++d) backend_.device(d).KeepOldMemory(shape != nullptr);
  if (!shape) return;
  entry_ = &Find(*shape);
  if (entry_->state == State::kRan) mode_ = Mode::kCapture;
  if (entry_->state == State::kCaptured) mode_ = Mode::kReplay;
  next_ = 0;
}

// The first Enqueue of a piece.
void StepGraphs::Open(kernels::Device& device) {
  open_ = &device;
  if (mode_ == Mode::kCapture) device.BeginCapture();
  if (mode_ == Mode::kReplay) entry_->graphs[next_++]->Launch();
}

void StepGraphs::Flush() {
  if (open_ && mode_ == Mode::kCapture) {
    entry_->graphs.push_back(open_->EndCapture());
    entry_->graphs.back()->Launch();
  }
  open_ = nullptr;
}

bool StepGraphs::End() {
  Flush();
  if (entry_ && entry_->state == State::kNew) entry_->state = State::kRan;
  if (mode_ == Mode::kCapture) entry_->state = State::kCaptured;
  return std::exchange(mode_, Mode::kRun) == Mode::kReplay;
}

void StepGraphs::Abandon() {
  if (mode_ == Mode::kCapture) {
    if (open_) open_->AbandonCapture();
    entry_->graphs.clear();
  }
  open_ = nullptr;
  mode_ = Mode::kRun;
}

void StepGraphs::Refuse() {
  Abandon();
  if (entry_) entry_->state = State::kRefused;
}

}  // namespace lockstep::fast
