// A whole check of a model: a matrix of configurations, and its recorded runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fast/engine.h"
#include "harness/invariance/configuration.h"
#include "model/checkpoint.h"

namespace lockstep::harness {

struct CheckOptions {
  MatrixSize size = MatrixSize::kQuick;
  std::optional<kernels::DeviceSpec> device;  // empty: pretend CPU devices, threads and instruction sets vary
  std::vector<std::int32_t> prompt;           // empty: prompt_tokens made up
  std::int64_t prompt_tokens = 0;             // 0: enough for an entry of the largest ratio, at least 72
  std::int64_t companion_tokens = 48;
  std::string golden;  // directory with recorded runs; empty: none. The model's name is its directory's
  std::vector<int> only;  // of the matrix, by their lines from 1 on; empty: all, and the recorded runs
  fast::BackendFactory make_backend = &kernels::MakeBackend;
};

struct CheckResult {
  int runs = 0;
  int differences = 0;
};

// Calls `report` with one line for each run: its configuration, then "equal" or the first step that differs. Throws InputError for a line that the matrix
// does not have.
CheckResult CheckModel(const std::shared_ptr<const Checkpoint>& checkpoint, const CheckOptions& options,
                       const std::function<void(const std::string&)>& report);

}  // namespace lockstep::harness
