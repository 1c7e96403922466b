// Compiled once per instruction set. docs/numerics.md section 6, Index score.
#include "kernels/contract/fold.h"
#include "kernels/contract/mma_block.h"
#include "kernels/index_select/index_rows.h"
#include "kernels/kv_rows/kv_pack_rows.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

constexpr int kMaxDim = 512;
constexpr int kMaxHeads = 128;

// A row's query: heads in lanes. FP4: values[dim][heads], scales[blocks][heads], weights[heads]. BF16: bits[heads][dim] first.
struct Query {
  int heads, lanes, dim, blocks;
  float* values;
  float* scales;
  float* weights;
  std::uint16_t* bits;
  std::size_t bytes;

  Query(const IndexSelectArgs& a, std::byte* base) {
    heads = a.heads;
    lanes = (heads + 15) / 16 * 16;
    dim = a.dim;
    blocks = a.key_format.block > 0 ? (dim + a.key_format.block - 1) / a.key_format.block : 0;
    values = reinterpret_cast<float*>(base);
    scales = values + static_cast<std::int64_t>(dim) * lanes;
    weights = scales + static_cast<std::int64_t>(blocks) * lanes;
    bits = reinterpret_cast<std::uint16_t*>(weights + lanes);
    bytes = static_cast<std::size_t>(dim + blocks + 1) * static_cast<std::size_t>(lanes) * sizeof(float) +
            static_cast<std::size_t>(heads * dim) * sizeof(std::uint16_t);
  }
};

// relu(d) * w of all heads, folded.
float FoldHeads(const Query& q, const F32x16* dots) {
  float parts[kMaxHeads];
  for (int v = 0; v < q.lanes; v += 16) {
    const F32x16 zero(0.0f), d = dots[v / 16];
    Store(Mul(Select(Less(zero, d), d, zero), Load(q.weights + v)), parts + v);
  }
  return FoldInPlace(parts, q.heads);
}

constexpr int kChains = 4;  // blocks summed side by side: their sums are exact, only their fold has an order

// Exact sums of the blocks [first, first + kBlocks) for 16 heads: multiples of 1/4 below 1152.
template <int kBlocks>
void SumBlocks(const Query& q, const float* values, int block, int first, int head, F32x16* sums) {
  F32x16 sum[kBlocks];
  for (F32x16& s : sum) s = F32x16(0.0f);
  for (int i = 0; i < block; ++i) {
    for (int b = 0; b < kBlocks; ++b) {
      const int channel = (first + b) * block + i;
      sum[b] = Fma(Load(q.values + channel * q.lanes + head), F32x16(values[channel]), sum[b]);
    }
  }
  for (int b = 0; b < kBlocks; ++b) sums[b] = sum[b];
}

float ScoreFp4(const IndexSelectArgs& a, const Query& q, const std::byte* key_row) {
  float values[kMaxDim], scales[kMaxDim];
  UnpackFp4(a.key_format, key_row, values, scales);
  const int block = a.key_format.block, whole = q.dim / block;  // a last short block has a chain of its own
  F32x16 dots[kMaxHeads / 16];
  for (int v = 0; v < q.lanes; v += 16) {
    F32x16 sums[kMaxDim];
    int b = 0;
    for (; b + kChains <= whole; b += kChains) SumBlocks<kChains>(q, values, block, b, v, sums + b);
    for (; b < whole; ++b) SumBlocks<1>(q, values, block, b, v, sums + b);
    if (b < q.blocks) {
      sums[b] = F32x16(0.0f);
      for (int i = b * block; i < q.dim; ++i) sums[b] = Fma(Load(q.values + i * q.lanes + v), F32x16(values[i]), sums[b]);
    }
    F32x16 dot(0.0f);
    for (b = 0; b < q.blocks; ++b) dot = Fma(sums[b], Mul(Load(q.scales + b * q.lanes + v), F32x16(scales[b])), dot);
    dots[v / 16] = dot;
  }
  return FoldHeads(q, dots);
}

float ScoreBf16(Profile profile, const Query& q, const std::byte* key_row) {
  MmaOperand key[kMaxDim], query[kMaxDim];
  std::uint16_t bits[kMaxDim];
  __builtin_memcpy(bits, key_row, static_cast<std::size_t>(q.dim) * 2);
  for (int i = 0; i < q.dim; ++i) key[i] = MmaOperandOfBF16(bits[i]);
  float dots[kMaxHeads] = {};
  for (int h = 0; h < q.heads; ++h) {
    for (int i = 0; i < q.dim; ++i) query[i] = MmaOperandOfBF16(q.bits[h * q.dim + i]);
    dots[h] = MmaDot(profile, query, key, q.dim);
  }
  F32x16 lanes[kMaxHeads / 16];
  for (int v = 0; v < q.lanes; v += 16) lanes[v / 16] = Load(dots + v);
  return FoldHeads(q, lanes);
}

}  // namespace

std::size_t IndexQueryBytes(const IndexSelectArgs& a) { return Query(a, nullptr).bytes; }

void PrepareIndexQuery(const IndexSelectArgs& a, std::int64_t t, std::byte* base) {
  const Query q(a, base);
  const float scale = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a.dim * a.heads)));
  for (int h = 0; h < q.lanes; ++h) {
    const std::uint16_t weight_bits = h < q.heads ? a.weight_TH[t * a.heads + h] : std::uint16_t{0};
    q.weights[h] = Mul(__builtin_bit_cast(float, static_cast<std::uint32_t>(weight_bits) << 16), scale);
    float values[kMaxDim] = {}, scales[kMaxDim] = {};
    if (h < q.heads) {
      const std::uint16_t* x = a.q_THI + (t * a.heads + h) * a.dim;
      __builtin_memcpy(q.bits + h * q.dim, x, static_cast<std::size_t>(q.dim) * 2);
      if (q.blocks > 0) {
        std::byte packed[2 * kMaxDim];
        PackRow(a.key_format, x, packed);
        UnpackFp4(a.key_format, packed, values, scales);
      }
    }
    for (int i = 0; i < q.dim; ++i) q.values[i * q.lanes + h] = values[i];
    for (int b = 0; b < q.blocks; ++b) q.scales[b * q.lanes + h] = scales[b];
  }
}

void IndexScores(const IndexSelectArgs& a, Profile profile, std::int64_t t, const std::byte* query, std::int64_t begin, std::int64_t end,
                 float* scores) {
  const Query q(a, const_cast<std::byte*>(query));
  const PagedRows& keys = a.row_T[t].keys;
  for (std::int64_t j = begin; j < end; ++j) {
    scores[j - begin] = q.blocks > 0 ? ScoreFp4(a, q, keys.Row(j)) : ScoreBf16(profile, q, keys.Row(j));
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
