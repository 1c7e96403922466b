// Where the tokens that an entry pools are. Contract: docs/numerics.md section 6, Compressor.
#pragma once

#include "kernels/compressor/compressor.h"
#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

struct PooledTokens {
  const CompressorArgs& a;
  const PoolEntry& entry;
  std::int64_t channels, first;  // of a row; position of the first token
  int count;

  __device__ PooledTokens(const CompressorArgs& args, const PoolEntry& pooled)
      : a(args), entry(pooled), channels(a.overlap ? 2 * a.width : a.width), first(a.overlap && entry.own > 0 ? entry.own - a.ratio : entry.own),
        count(static_cast<int>(entry.own + a.ratio - first)) {}

  // A token's channels from the first that the entry pools of it on.
  struct Token {
    const float *kv, *gate;
    const float* ape;  // null: already added
  };
  __device__ Token At(int r) const {
    const std::int64_t position = first + r, channel = a.overlap && position >= entry.own ? a.width : 0;
    if (position >= entry.position) {
      const std::int64_t at = (entry.row + position - entry.position) * channels + channel;
      return {a.kv + at, a.gate + at, a.ape ? a.ape + Modulo(position, a.ratio) * channels + channel : nullptr};
    }
    const float* slot = entry.history + Modulo(position, a.history_slots) * 2 * channels + channel;
    return {slot, slot + channels, nullptr};
  }

 private:
  // Positions have 32 bits, which divide in a fifth of the time.
  __device__ static std::int64_t Modulo(std::int64_t position, std::int64_t n) { return static_cast<std::uint32_t>(position) % static_cast<std::uint32_t>(n); }
};

}  // namespace lockstep::kernels
