// The (token, expert) pairs of a layer in one piece of memory, so that one copy brings them to the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::fast {

// Laid out the same way on a device and in the host's copy, with room for the shared expert's group and its pairs.
struct PairArrays {
  kernels::PairGroups groups;
  std::int32_t* token = nullptr;  // [pairs]
  float* weight = nullptr;        // [pairs]

  // Of `rows` rows, each of which picks top_k of the experts.
  static std::size_t Bytes(int experts, std::int64_t rows, int top_k) {
    const auto groups = static_cast<std::size_t>(experts) + 1, pairs = static_cast<std::size_t>(rows * (top_k + 1));
    return (3 * groups + 1 + 2 * pairs) * sizeof(std::int32_t);
  }
  static PairArrays In(std::byte* memory, int experts, std::int64_t rows, int top_k) {
    static_assert(sizeof(float) == sizeof(std::int32_t));
    const std::int64_t groups = experts + 1, pairs = rows * (top_k + 1);
    auto* at = reinterpret_cast<std::int32_t*>(memory);
    PairArrays arrays;
    arrays.groups = {at, at + groups, at + 2 * groups, at + 3 * groups};
    arrays.token = at + 3 * groups + 1;
    arrays.weight = reinterpret_cast<float*>(arrays.token + pairs);
    return arrays;
  }
};

}  // namespace lockstep::fast
