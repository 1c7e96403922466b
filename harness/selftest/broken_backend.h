// A backend with one fault in it: kernels of a real backend of which some are replaced, and copies that may go
// wrong. The tests of the tests run the fast engine on it; nothing in fast/ knows.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fast/engine.h"
#include "kernels/device/backend.h"
#include "kernels/table/kernel_table.h"

namespace lockstep::harness {

struct Fault {
  // Called when a backend with the fault is made.
  std::function<void()> begin = nullptr;
  // Replaces kernels of the devices and of the CPU lane. Replacements are plain functions; they reach the right
  // ones through Good().
  std::function<void(kernels::KernelTable& table)> kernels = nullptr;
  // Called instead of a device's copy into memory that was allocated as `memory`; `good` makes the copy as asked for.
  using Copy = std::function<void(std::byte* to, const std::byte* from, std::size_t bytes,
                                  const std::function<void(std::size_t bytes)>& good)>;
  Copy copy_in = nullptr;
  std::string memory = {};
  // No step can be captured: not a fault, the engine must then do without.
  bool refuses_captures = false;
};

// The table that the fault was put into. One broken backend exists at a time.
const kernels::KernelTable& Good();

// Every linear of a model through `kRun`, alone or in sets.
template <void (*kRun)(kernels::Stream&, const kernels::LinearArgs&)>
Fault ReplaceLinears() {
  Fault fault;
  fault.kernels = [](kernels::KernelTable& table) {
    table.linear.run = kRun;
    table.linear_set.run = [](kernels::Stream& stream, const kernels::LinearSetArgs& set) {
      for (int i = 0; i < set.count; ++i) kRun(stream, set.linears[i]);
    };
  };
  return fault;
}

// A factory of CPU backends with the fault.
fast::BackendFactory BrokenBackend(const Fault& fault);

}  // namespace lockstep::harness
