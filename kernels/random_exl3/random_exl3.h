// EXL3 matrices that no file holds: the blob of linear_layout.h filled with random numbers where it lies, so that a synthetic model of a
// hundred gigabytes is made in seconds and never exists on the host. Contract: the bytes that PackLinear would make of the same numbers in a
// file, which harness/synth writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contract/float_ops.h"
#include "kernels/device/stream.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/random_exl3/counter_rng.h"

namespace lockstep::kernels {

struct RandomExl3Args {
  const LinearSpec* spec = nullptr;  // host; kExl3 without bias
  std::uint64_t trellis_key = 0;     // stream of the stored trellis, 8 bytes a number
  std::uint64_t input_key = 0, output_key = 0;  // streams of suh and svh, a number a channel
  float input_unit = 0, output_unit = 0;
  std::byte* blob = nullptr;  // device, where spec's offsets count from
};

// Channel i of a random suh or svh: a random sign, and (96 .. 160) times `unit`, before its rounding to fp16. unit is such that the result is
// a normal fp16 number.
LOCKSTEP_HD float RandomExl3Scale(const CounterRng& rng, std::int64_t i, float unit) {
  const float magnitude = contract::Mul(static_cast<float>(96 + rng.Below(i, 65)), unit);
  return (rng.Bits(i) & 1u) ? -magnitude : magnitude;
}

// A blob as 8-byte words from spec.weight on, whose contents depend on their place only.
struct RandomExl3Words {
  RandomExl3Args args;
  std::int64_t trellis_words = 0, input_word = 0, input_words = 0, output_word = 0, output_words = 0, words = 0;
  std::uint32_t tile_words = 0, k_tiles = 0, n_tiles = 0;

  // Copies what the words need of *args.spec. Fewer than 2^32 words.
  explicit RandomExl3Words(const RandomExl3Args& a);

  LOCKSTEP_HD std::uint64_t At(std::uint32_t word) const {
    if (word < trellis_words) return CounterRng(args.trellis_key).Bits(StoredTrellisWord(word));
    if (word >= input_word && word < input_word + input_words) return ScalePair(args.input_key, args.input_unit, 2 * (word - input_word));
    if (word >= output_word && word < output_word + output_words) return ScalePair(args.output_key, args.output_unit, 2 * (word - output_word));
    return 0;
  }

 private:
  // Tiles are stored with the output index fastest and packed with the input index fastest.
  LOCKSTEP_HD std::int64_t StoredTrellisWord(std::uint32_t word) const {
    const std::uint32_t tile = word / tile_words, nt = tile / k_tiles, kt = tile % k_tiles;
    return static_cast<std::int64_t>(kt * n_tiles + nt) * tile_words + word % tile_words;
  }
  // To nearest, ties to even, for what is normal in fp16.
  LOCKSTEP_HD static std::uint32_t RoundedToF16(float value) {
    const auto bits = static_cast<std::uint32_t>(contract::BitsOf(value));
    return (bits + 0xfffu + ((bits >> 13) & 1u)) & ~std::uint32_t{0x1fff};
  }
  LOCKSTEP_HD static std::uint64_t ScalePair(std::uint64_t key, float unit, std::int64_t i) {
    const CounterRng rng(key);
    const std::uint64_t low = RoundedToF16(RandomExl3Scale(rng, i, unit)), high = RoundedToF16(RandomExl3Scale(rng, i + 1, unit));
    return low | (high << 32);
  }
};

Kernel<RandomExl3Args> CpuRandomExl3();

}  // namespace lockstep::kernels
