// A problem of a kernel folder: one shape with its inputs, shared by the folder's test and benchmark. It has
//   using Output = std::tuple<std::vector<...>...>      all that the kernel writes
//   static constexpr auto kKernel = &KernelTable::...
//   Output Start() const                                the outputs before the call: guards, or what is changed
//   in place Args Place(CallMemory& memory, Output& output) const Work work() const of one call
// The problem outlives its arguments.
#pragma once

#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/testing/implementations.h"

namespace lockstep::kernels {

// A case that has a name: the sizes of models, which tests check and benchmarks time.
template <typename Case>
struct Named {
  std::string name;
  Case shape;
};

// What one call must at least move and multiply.
struct Work {
  double bytes = 0;      // read and written once
  double footprint = 0;  // what calls that take turns touch together; 0: the same bytes each time
  double products = 0;   // multiply-adds, of fp32 or as fast as those
  double items = 0;      // tokens, rows or keys, as the folder counts
};

template <typename Problem>
void Call(const Implementation& implementation, const Problem& problem, CallMemory& memory,
          typename Problem::Output& output) {
  (implementation.kernels().*Problem::kKernel)(implementation.stream(), problem.Place(memory, output));
}

// What one call leaves in the outputs.
template <typename Problem>
typename Problem::Output RunOn(const Implementation& implementation, const Problem& problem) {
  typename Problem::Output output = problem.Start();
  CallMemory memory(implementation);
  Call(implementation, problem, memory, output);
  memory.Finish();
  return output;
}

// memcmp equality of all arrays.
template <typename... Arrays>
bool SameBytes(const std::tuple<Arrays...>& a, const std::tuple<Arrays...>& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0;
  };
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return (same(std::get<i>(a), std::get<i>(b)) && ...);
  }
  (std::index_sequence_for<Arrays...>());
}

}  // namespace lockstep::kernels
