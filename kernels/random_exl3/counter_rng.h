// Random numbers by position: element i of a stream costs the same wherever one starts, and is the same on every machine, CPU or GPU.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/contract/float_ops.h"

namespace lockstep::kernels {

// The output function of SplitMix64.
LOCKSTEP_HD constexpr std::uint64_t MixBits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// One stream. A key names it, made from a seed and a name.
class CounterRng {
 public:
  CounterRng(std::uint64_t seed, std::string_view name) : key_(MixBits(seed + kStep)) {
    for (const char c : name) key_ = MixBits(key_ ^ (static_cast<unsigned char>(c) + kStep));
  }
  LOCKSTEP_HD explicit CounterRng(std::uint64_t key) : key_(key) {}

  LOCKSTEP_HD std::uint64_t key() const { return key_; }

  LOCKSTEP_HD std::uint64_t Bits(std::int64_t i) const { return MixBits(key_ + (static_cast<std::uint64_t>(i) + 1) * kStep); }

  // Uniform in [0, bound); bound is small against 2^32.
  LOCKSTEP_HD std::uint32_t Below(std::int64_t i, std::uint32_t bound) const {
    return static_cast<std::uint32_t>((Bits(i) >> 32) * bound >> 32);
  }

  // Nearly normal with mean 0 and deviation kNormalDeviation: an integer, the sum of four uniform 16-bit numbers less its mean.
  LOCKSTEP_HD std::int32_t NormalInt(std::int64_t i) const {
    const std::uint64_t bits = Bits(i);
    const auto sum = (bits & 0xffffu) + ((bits >> 16) & 0xffffu) + ((bits >> 32) & 0xffffu) + (bits >> 48);
    return static_cast<std::int32_t>(sum) - 2 * 0xffff;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;
  std::uint64_t key_;
};

// sqrt(4 * (2^32 - 1) / 12)
inline constexpr double kNormalDeviation = 37837.2272;

}  // namespace lockstep::kernels
