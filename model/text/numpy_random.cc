#include "model/text/numpy_random.h"

#include <array>
#include <bit>

#include "model/error.h"

namespace lockstep {
namespace {

using Pool = std::array<std::uint32_t, 4>;

// SeedSequence's pool: the seed's words hashed, then every word mixed into every other.
Pool MixSeed(std::uint64_t seed) {
  std::uint32_t constant = 0x43b0d7e5u;
  const auto hash = [&constant](std::uint32_t value) {
    value ^= constant;
    constant *= 0x931e8875u;
    value *= constant;
    return value ^ (value >> 16);
  };
  const auto mix = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
    return value ^ (value >> 16);
  };
  const Pool words = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), 0, 0};
  Pool pool;
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = hash(words[i]);
  for (std::size_t source = 0; source < pool.size(); ++source) {
    for (std::size_t target = 0; target < pool.size(); ++target) {
      if (source != target) pool[target] = mix(pool[target], hash(pool[source]));
    }
  }
  return pool;
}

// SeedSequence.generate_state(4, uint64).
std::array<std::uint64_t, 4> GenerateState(const Pool& pool) {
  std::uint32_t constant = 0x8b51f9ddu;
  std::array<std::uint64_t, 4> state{};
  for (std::size_t i = 0; i < 8; ++i) {
    std::uint32_t value = pool[i % 4] ^ constant;
    constant *= 0x58f38dedu;
    value *= constant;
    value ^= value >> 16;
    state[i / 2] |= std::uint64_t{value} << (32 * (i % 2));
  }
  return state;
}

}  // namespace

NumpyPcg64::NumpyPcg64(std::uint64_t seed) {
  const std::array<std::uint64_t, 4> words = GenerateState(MixSeed(seed));
  const Uint128 initial = (static_cast<Uint128>(words[0]) << 64) | words[1];
  const Uint128 sequence = (static_cast<Uint128>(words[2]) << 64) | words[3];
  increment_ = (sequence << 1) | 1;
  Step();
  state_ += initial;
  Step();
}

void NumpyPcg64::Step() {
  constexpr Uint128 kMultiplier = (static_cast<Uint128>(0x2360ed051fc65da4u) << 64) | 0x4385df649fccf645u;
  state_ = state_ * kMultiplier + increment_;
}

std::uint64_t NumpyPcg64::Next() {
  Step();
  const auto high = static_cast<std::uint64_t>(state_ >> 64);
  const auto low = static_cast<std::uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

std::uint64_t NumpyPcg64::Below(std::uint64_t bound) {
  LOCKSTEP_CHECK(bound > (std::uint64_t{1} << 32));
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const Uint128 product = static_cast<Uint128>(Next()) * bound;
    if (static_cast<std::uint64_t>(product) >= threshold) return static_cast<std::uint64_t>(product >> 64);
  }
}

}  // namespace lockstep
