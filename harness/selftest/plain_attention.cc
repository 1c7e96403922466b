#include "harness/selftest/plain_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "harness/selftest/broken_backend.h"
#include "kernels/contract/exact_math.h"
#include "model/float_formats.h"

namespace lockstep::harness {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionRow;

constexpr std::int64_t kBlock = 64;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

using Floats = std::vector<float>;
using Slots = std::vector<Floats>;  // rows; empty slots have no channels

Floats Unpack(kernels::Stream& stream, const kernels::RowFormat& format, const std::byte* row) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(format.width));
  kernels::UnpackRowsArgs args;
  args.format = format;
  args.flat = row;
  args.rows = 1;
  args.y = bits.data();
  args.y_stride = format.width;
  Good().unpack_rows(stream, args);
  Floats values;
  for (const std::uint16_t b : bits) values.push_back(BF16ToFloat(b));
  return values;
}

Slots RowsOf(kernels::Stream& stream, const AttentionArgs& args, std::int64_t t, bool from_window) {
  const AttentionRow& row = args.row_T[t];
  const std::int64_t first = std::max<std::int64_t>(0, row.position - args.window + 1);
  Slots slots;
  for (std::int64_t p = from_window ? first : first / kBlock * kBlock; p <= row.position; ++p) {
    slots.push_back(p < first ? Floats() : Unpack(stream, args.window_format, row.window.Row(p)));
  }
  slots.resize((slots.size() + kBlock - 1) / kBlock * kBlock);
  const std::int64_t count = row.compressed.pages == nullptr ? 0
                             : args.all_visible              ? row.visible
                                                             : args.count_T[t];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t entry = args.all_visible ? i : args.selected_TK[t * args.top_k + i];
    slots.push_back(Unpack(stream, args.compressed_format, row.compressed.Row(entry)));
  }
  slots.resize((slots.size() + kBlock - 1) / kBlock * kBlock);
  return slots;
}

// H(0; a, b) of profile fma.
float Dot(const float* a, const Floats& b) {
  float lanes[16] = {};
  for (std::size_t k = 0; k < b.size(); ++k) lanes[k % 16] = std::fma(a[k], b[k], lanes[k % 16]);
  for (std::size_t stride = 8; stride > 0; stride /= 2) {
    for (std::size_t l = 0; l < stride; ++l) lanes[l] += lanes[l + stride];
  }
  return lanes[0];
}

template <AttentionMistake mistake>
float Sum64(Floats w) {
  if (mistake == AttentionMistake::kDenominatorInOrder) {
    float sum = 0;
    for (const float x : w) sum += x;
    return sum;
  }
  for (std::size_t stride = kBlock / 2; stride > 0; stride /= 2) {
    for (std::size_t l = 0; l < stride; ++l) w[l] += w[l + stride];
  }
  return w[0];
}

// One head of one token: o / den.
template <AttentionMistake mistake>
Floats Attend(const float* q, const Slots& slots, float sink, std::int64_t dim) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  float maximum = mistake == AttentionMistake::kSinkInMaximum ? sink : kLowest, den = 0;
  Floats o(static_cast<std::size_t>(dim), 0.0f);
  for (std::size_t begin = 0; begin < slots.size(); begin += kBlock) {
    Floats s(kBlock, kLowest), w(kBlock, 0.0f);
    for (std::size_t i = 0; i < kBlock; ++i) {
      if (!slots[begin + i].empty()) s[i] = Dot(q, slots[begin + i]) * scale;
    }
    const float next = std::max(maximum, *std::max_element(s.begin(), s.end()));
    float rescale = maximum == kLowest ? 0.0f : contract::Exp(maximum - next);
    if (mistake == AttentionMistake::kNoRescale && begin > 0) rescale = 1.0f;
    for (std::size_t i = 0; i < kBlock; ++i) {
      if (!slots[begin + i].empty()) w[i] = contract::Exp(s[i] - next);
    }
    den = std::fma(den, rescale, Sum64<mistake>(w));
    for (float& x : o) x *= rescale;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float weight = mistake == AttentionMistake::kWeightsNotRounded ? w[i] : RoundToBF16(w[i]);
      for (std::size_t d = 0; d < slots[begin + i].size(); ++d)
        o[d] = std::fma(weight, slots[begin + i][d], o[d]);
    }
    maximum = next;
  }
  den += contract::Exp(sink - maximum);
  for (float& x : o) x /= den;
  return o;
}

}  // namespace

template <AttentionMistake mistake>
void PlainAttention(kernels::Stream& stream, const AttentionArgs& args) {
  for (std::int64_t t = 0; t < args.rows; ++t) {
    const Slots slots = RowsOf(stream, args, t, mistake == AttentionMistake::kBlocksFromWindow);
    for (int h = 0; h < args.heads; ++h) {
      const std::int64_t begin = (t * args.heads + h) * args.head_dim;
      Floats q;
      for (int d = 0; d < args.head_dim; ++d) q.push_back(BF16ToFloat(args.q_THD[begin + d]));
      const Floats out = Attend<mistake>(q.data(), slots, args.sink_H[h], args.head_dim);
      for (int d = 0; d < args.head_dim; ++d)
        args.out_THD[begin + d] = FloatToBF16(out[static_cast<std::size_t>(d)]);
    }
    if (!args.rope_table) continue;
    const std::int64_t position = args.row_T[t].position;
    Good().rope(stream, {args.out_THD + t * args.heads * args.head_dim, 1, args.heads, args.head_dim, args.rope_dim,
                         args.rope_table, &position, /*inverse=*/true});
  }
}

template void PlainAttention<AttentionMistake::kNone>(kernels::Stream&, const AttentionArgs&);
template void PlainAttention<AttentionMistake::kNoRescale>(kernels::Stream&, const AttentionArgs&);
template void PlainAttention<AttentionMistake::kBlocksFromWindow>(kernels::Stream&, const AttentionArgs&);
template void PlainAttention<AttentionMistake::kWeightsNotRounded>(kernels::Stream&, const AttentionArgs&);
template void PlainAttention<AttentionMistake::kDenominatorInOrder>(kernels::Stream&, const AttentionArgs&);
template void PlainAttention<AttentionMistake::kSinkInMaximum>(kernels::Stream&, const AttentionArgs&);

}  // namespace lockstep::harness
