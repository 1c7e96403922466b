// The digest of an elementary function over a set of inputs: the sum modulo 2^64 of one mixed word for each
// input and its result. A sum does not depend on order, so threads and GPU blocks can take inputs as they like.
#pragma once

#include <cstdint>

#include "kernels/contract/isa.h"

namespace lockstep::contract {
inline namespace LOCKSTEP_ISA {

// The term of input bit pattern `input` with result bit pattern `result`.
LOCKSTEP_HD std::uint64_t DigestTerm(std::uint32_t input, std::uint32_t result) {
  std::uint64_t word = (static_cast<std::uint64_t>(input) << 32) | result;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

// Input number i of the sampled digest, i < kSampledInputs: an odd multiple walks through all exponents and
// both signs.
constexpr std::uint32_t kSampledInputs = 1u << 22;
LOCKSTEP_HD std::uint32_t SampledInput(std::uint32_t i) { return i * 0x9e3779b1u; }

}  // namespace LOCKSTEP_ISA
}  // namespace lockstep::contract
