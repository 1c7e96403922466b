// Loops whose index is a constant of the compiler from the start: arrays of more than 64 registers go to memory where a pragma unrolls them later.
#pragma once

#include <type_traits>
#include <utility>

namespace lockstep::kernels {

template <class Body, int... kIndex>
__device__ __forceinline__ void UnrolledOver(std::integer_sequence<int, kIndex...>, const Body& body) {
  (body(std::integral_constant<int, kIndex>()), ...);
}

// body(std::integral_constant<int, 0>()) .. body(std::integral_constant<int, kCount - 1>()).
template <int kCount, class Body>
__device__ __forceinline__ void Unrolled(const Body& body) {
  UnrolledOver(std::make_integer_sequence<int, kCount>(), body);
}

}  // namespace lockstep::kernels
