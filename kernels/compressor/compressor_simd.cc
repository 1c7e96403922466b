// Compiled once per instruction set.
#include "kernels/compressor/compressor_rows.h"
#include "kernels/contract/exact_math_vec.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

// kv and gate (with ape) of one token of an entry, 16 channels from c on: from the step's rows, or from the history for earlier positions.
struct TokenRow {
  const float* kv;
  const float* gate;
  const float* ape;  // null: already added

  TokenRow(const CompressorArgs& a, const PoolEntry& entry, std::int64_t position) {
    const std::int64_t channels = a.overlap ? 2 * a.width : a.width;
    if (position >= entry.position) {
      const std::int64_t row = entry.row + position - entry.position;
      kv = a.kv + row * channels;
      gate = a.gate + row * channels;
      ape = a.ape ? a.ape + position % a.ratio * channels : nullptr;
    } else {
      kv = entry.history + position % a.history_slots * 2 * channels;
      gate = kv + channels;
      ape = nullptr;
    }
  }
  F32x16 Kv(std::int64_t c, int count) const { return LoadN(kv + c, count); }
  F32x16 Gate(std::int64_t c, int count) const {
    return ape ? Add(LoadN(gate + c, count), LoadN(ape + c, count)) : LoadN(gate + c, count);
  }
};

// Softmax over an entry's tokens of channels c.., the weighted sum of their kv. With overlap tokens before `own` give their first half of
// the channels, the others the last half.
F32x16 PoolChannels(const CompressorArgs& a, const PoolEntry& entry, std::int64_t c, int count) {
  const std::int64_t first = a.overlap && entry.own > 0 ? entry.own - a.ratio : entry.own, end = entry.own + a.ratio;
  const auto channel = [&](std::int64_t position) { return c + (a.overlap && position >= entry.own ? a.width : 0); };
  F32x16 top = TokenRow(a, entry, first).Gate(channel(first), count);
  for (std::int64_t p = first + 1; p < end; ++p) top = Max(TokenRow(a, entry, p).Gate(channel(p), count), top);
  F32x16 denominator(0.0f), numerator(0.0f);
  for (std::int64_t p = first; p < end; ++p) {
    const TokenRow row(a, entry, p);
    const F32x16 e = Exp(Sub(row.Gate(channel(p), count), top));
    denominator = p == first ? e : Add(denominator, e);
    numerator = p == first ? Mul(e, row.Kv(channel(p), count)) : Fma(e, row.Kv(channel(p), count), numerator);
  }
  return Div(numerator, denominator);
}

}  // namespace

void CompressEntries(const CompressorArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const PoolEntry& entry = a.entry_N[i];
    for (std::int64_t c = 0; c < a.width; c += 16) {
      const int count = a.width - c < 16 ? static_cast<int>(a.width - c) : 16;
      StoreBF16N(entry.own < 0 ? F32x16(0.0f) : PoolChannels(a, entry, c, count), a.latent + i * a.width + c, count);
    }
  }
}

void StoreHistoryRows(const StoreHistoryArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    float* slot = a.slot_T[t];
    if (!slot) continue;
    const float* gate = a.gate + t * a.channels;
    __builtin_memcpy(slot, a.kv + t * a.channels, static_cast<std::size_t>(a.channels) * sizeof(float));
    const float* ape = a.ape ? a.ape + a.position_T[t] % a.ratio * a.channels : nullptr;
    for (std::int64_t c = 0; c < a.channels; ++c) slot[a.channels + c] = ape ? Add(gate[c], ape[c]) : gate[c];
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
