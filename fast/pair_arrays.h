// The (token, expert) pairs of a layer in one piece of memory, so that one copy brings them to the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::fast {

// Laid out the same way on a device and in the host's copy.
struct PairArrays {
  kernels::PairGroups groups;
  std::int32_t* token = nullptr;  // [pairs]
  float* weight = nullptr;        // [pairs]

  static std::size_t Bytes(int experts, std::int64_t pairs) {
    return (3 * static_cast<std::size_t>(experts) + 1 + 2 * static_cast<std::size_t>(pairs)) * sizeof(std::int32_t);
  }
  static PairArrays In(std::byte* memory, int experts, std::int64_t pairs) {
    static_assert(sizeof(float) == sizeof(std::int32_t));
    auto* at = reinterpret_cast<std::int32_t*>(memory);
    PairArrays arrays;
    arrays.groups = {at, at + experts, at + 2 * experts, at + 3 * experts};
    arrays.token = at + 3 * experts + 1;
    arrays.weight = reinterpret_cast<float*>(arrays.token + pairs);
    return arrays;
  }
};

}  // namespace lockstep::fast
