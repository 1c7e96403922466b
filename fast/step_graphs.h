// Steps of decode as captured graphs. A step enqueues its kernels in pieces; between pieces the host may act. The first step of a shape runs
// as it is, which also makes every kernel's scratch memory; the second is captured, a graph from one flush to the next; later ones only
// launch the graphs. What depends on positions is read from the step record, so a graph holds for every step of its shape.
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
    if (mode_ != Mode::kReplay) {
      if (mode_ == Mode::kCapture && !open_) device.BeginCapture();
      open_ = mode_ == Mode::kCapture ? &device : nullptr;
      work();
    } else {
      open_ = &device;
    }
  }
  // Launches what was enqueued. The host may wait for the device, copy and enqueue other work until the next Enqueue.
  void Flush();
  // Ends a step that was enqueued to its end. True if all of it was launched from graphs.
  bool End();
  // Ends a step that was not: what was not flushed does not run.
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
  std::int64_t Epoch() const;
  Entry& Find(const StepShape& shape);

  kernels::Backend& backend_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::int64_t generation_ = -1, epoch_ = -1;
  // Of the running step.
  Mode mode_ = Mode::kRun;
  Entry* entry_ = nullptr;
  kernels::Device* open_ = nullptr;  // device of the piece that is not flushed
  std::size_t next_ = 0;
};

}  // namespace lockstep::fast
