// Steps of decode as captured graphs. A step enqueues its kernels in pieces; between pieces the host may act. The first step of a shape runs
// as it is, which also makes every kernel's scratch memory; the second is captured, a graph from one flush to the next; later ones only
// launch the graphs, each when its piece begins, since all that it reads is there. What depends on positions is read from the step record, so a graph
// holds for every step of its shape.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fast/step_record.h"
#include "kernels/device/backend.h"

namespace lockstep::fast {

// What the kernels' arguments and launches depend on, in a step whose record has a fixed layout.
struct StepShape {
  std::int64_t rows = 0;
  std::int64_t position_bound = 0;  // of visible positions
  Ranges logit_rows;
  bool draws = false;  // tokens, from the logits

  bool operator==(const StepShape&) const = default;
};

class StepGraphs {
 public:
  explicit StepGraphs(kernels::Backend& backend) : backend_(backend) {}

  // Begins a step of a shape, or with null one that runs as it is. Graphs that were captured before `generation` last changed, or from
  // memory that is gone, are forgotten.
  void Begin(const StepShape* shape, std::int64_t generation);
  // Does `work`, which enqueues kernels on the device's compute stream: now, into the running capture, or not at all when a graph has it.
  template <typename Work>
  void Enqueue(kernels::Device& device, const Work& work) {
    if (entry_ && !open_) Open(device);
    if (mode_ != Mode::kReplay) work();
  }
  // Ends the piece: what was enqueued is launched. The host may wait for the device, copy and enqueue other work until the next Enqueue.
  void Flush();
  // Ends a step that was enqueued to its end. True if all of it was launched from graphs.
  bool End();
  // Ends a step that was not: what was captured and not flushed does not run, pieces that graphs had may.
  void Abandon();
  // The running shape cannot be captured: its steps run as they are from now on.
  void Refuse();

 private:
  enum class Mode { kRun, kCapture, kReplay };
  enum class State { kNew, kRan, kCaptured, kRefused };
  struct Entry {
    StepShape shape;
    State state = State::kNew;
    std::vector<std::unique_ptr<kernels::Graph>> graphs;
  };
  void Open(kernels::Device& device);
  std::int64_t Epoch() const;
  Entry& Find(const StepShape& shape);

  kernels::Backend& backend_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::int64_t generation_ = -1, epoch_ = -1;
  // Of the running step.
  Mode mode_ = Mode::kRun;
  Entry* entry_ = nullptr;
  kernels::Device* open_ = nullptr;  // device of the piece that is not flushed; null in steps without an entry
  std::size_t next_ = 0;
};

}  // namespace lockstep::fast
