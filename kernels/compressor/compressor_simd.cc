// Compiled once per instruction set.
#include "kernels/compressor/compressor_rows.h"
#include "kernels/contract/exact_math_vec.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

// kv and gate (with ape) of one token, 16 channels from c on: from the step's rows, or from the history for earlier positions.
struct TokenRow {
  const CompressorArgs& a;
  std::int64_t channels;
  const float* kv;
  const float* gate;
  const float* ape;  // null: already added

  TokenRow(const CompressorArgs& args, std::int64_t position) : a(args), channels(args.overlap ? 2 * args.width : args.width) {
    if (position >= a.position) {
      kv = a.kv + (position - a.position) * channels;
      gate = a.gate + (position - a.position) * channels;
      ape = a.ape ? a.ape + position % a.ratio * channels : nullptr;
    } else {
      kv = a.history + position % a.history_slots * 2 * channels;
      gate = kv + channels;
      ape = nullptr;
    }
  }
  F32x16 Kv(std::int64_t c, int count) const { return LoadN(kv + c, count); }
  F32x16 Gate(std::int64_t c, int count) const {
    return ape ? Add(LoadN(gate + c, count), LoadN(ape + c, count)) : LoadN(gate + c, count);
  }
};

// Softmax over the tokens [first, end) of channels c.., the weighted sum of their kv. Tokens before `own` give their first half of the
// channels, the others the last half.
F32x16 PoolChannels(const CompressorArgs& a, std::int64_t first, std::int64_t own, std::int64_t end, std::int64_t c, int count) {
  const auto channel = [&](std::int64_t position) { return c + (a.overlap && position >= own ? a.width : 0); };
  F32x16 top = TokenRow(a, first).Gate(channel(first), count);
  for (std::int64_t p = first + 1; p < end; ++p) top = Max(TokenRow(a, p).Gate(channel(p), count), top);
  F32x16 denominator(0.0f), numerator(0.0f);
  for (std::int64_t p = first; p < end; ++p) {
    const TokenRow row(a, p);
    const F32x16 e = Exp(Sub(row.Gate(channel(p), count), top));
    denominator = p == first ? e : Add(denominator, e);
    numerator = p == first ? Mul(e, row.Kv(channel(p), count)) : Fma(e, row.Kv(channel(p), count), numerator);
  }
  return Div(numerator, denominator);
}

}  // namespace

void CompressEntries(const CompressorArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t own = (a.position / a.ratio + i) * a.ratio;
    const std::int64_t first = a.overlap && own > 0 ? own - a.ratio : own;
    for (std::int64_t c = 0; c < a.width; c += 16) {
      const int count = a.width - c < 16 ? static_cast<int>(a.width - c) : 16;
      StoreBF16N(PoolChannels(a, first, own, own + a.ratio, c, count), a.latent + i * a.width + c, count);
    }
  }
}

void StoreHistoryRows(const StoreHistoryArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t position = a.position + t;
    float* slot = a.history + position % a.history_slots * 2 * a.channels;
    const float* gate = a.gate + t * a.channels;
    __builtin_memcpy(slot, a.kv + t * a.channels, static_cast<std::size_t>(a.channels) * sizeof(float));
    const float* ape = a.ape ? a.ape + position % a.ratio * a.channels : nullptr;
    for (std::int64_t c = 0; c < a.channels; ++c) slot[a.channels + c] = ape ? Add(gate[c], ape[c]) : gate[c];
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
