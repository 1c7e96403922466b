// One token and 16 heads a block: keys come in blocks of 64 slots, heads are the rows of the MMA, one running softmax a head.
// Contract: docs/numerics.md section 6, Attention.
#include "kernels/attention/attention_cuda.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/kv_rows/kv_codec.cuh"
#include "kernels/linear/mma_sm80.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kSlots = 64;
constexpr int kHeads = 16;
constexpr int kMaxDim = 512;
constexpr int kMaxTiles = kMaxDim / 8 / kWarps;  // n8 tiles of the output that a warp holds

struct Shared {
  float score[kHeads][kSlots + 1];
  std::uint16_t weight[kHeads][kSlots];
  float max[kHeads], denominator[kHeads], rescale[kHeads];
  const std::byte* row[kSlots];
  // then std::uint16_t keys[kSlots][dim + 8]
};

__device__ const std::byte* WindowRow(const WindowRows& w, std::int64_t position) {
  return position >= w.step_begin ? w.step_rows + (position - w.step_begin) * w.row_bytes : w.ring + position % w.ring_rows * w.row_bytes;
}

__device__ const std::byte* CompressedRow(const PagedRows& rows, std::int64_t i) {
  return rows.pages[i >> rows.page_shift] + (i & ((std::int64_t{1} << rows.page_shift) - 1)) * rows.row_bytes;
}

struct TokenAttention {
  const AttentionArgs& a;
  Shared& s;
  std::uint16_t* keys;
  int dim, key_stride, heads, warp, lane, g, q;
  const std::uint16_t* q_rows;  // of the group's first head
  float scale;
  float out[kMaxTiles][4];

  // Scores of 16 heads against the warp's 16 slots.
  __device__ void Scores() {
    float c[2][4] = {};
    const std::uint16_t *head0 = g < heads ? q_rows + g * dim : nullptr, *head8 = g + 8 < heads ? q_rows + (g + 8) * dim : nullptr;
    for (int k = 0; k < dim; k += 16) {
      const FragmentA fragment = LoadA(head0, head8, k, dim);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const std::uint16_t* key = keys + (16 * warp + 8 * n + g) * key_stride;
        MmaBF16(c[n], fragment, LoadPair(key, k + 2 * q, dim), LoadPair(key, k + 2 * q + 8, dim));
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s.score[g + (i < 2 ? 0 : 8)][16 * warp + 8 * n + 2 * q + (i & 1)] = contract::Mul(c[n][i], scale);
    }
  }

  // A warp a head: weights of the 64 slots, two a lane.
  __device__ void Softmax() {
    for (int h = warp; h < kHeads; h += kWarps) {
      const bool filled0 = s.row[lane] != nullptr, filled1 = s.row[lane + 32] != nullptr;
      const float nothing = -__int_as_float(0x7f800000);
      const float score0 = filled0 ? s.score[h][lane] : nothing, score1 = filled1 ? s.score[h][lane + 32] : nothing;
      const float old_max = s.max[h], top = fmaxf(old_max, MaxWarp(fmaxf(score0, score1)));
      const float rescale = old_max == nothing ? 0.0f : contract::Exp(contract::Sub(old_max, top));
      const float w0 = filled0 ? contract::Exp(contract::Sub(score0, top)) : 0.0f, w1 = filled1 ? contract::Exp(contract::Sub(score1, top)) : 0.0f;
      const float sum = FoldWarp(contract::Add(w0, w1));
      s.weight[h][lane] = BF16Bits(w0);
      s.weight[h][lane + 32] = BF16Bits(w1);
      __syncwarp();
      if (lane != 0) continue;
      s.denominator[h] = contract::Fma(s.denominator[h], rescale, sum);
      s.max[h] = top;
      s.rescale[h] = rescale;
    }
  }

  __device__ void WeightedValues() {
    const float rescale0 = s.rescale[g], rescale8 = s.rescale[g + 8];
#pragma unroll
    for (int i = 0; i < kMaxTiles; ++i) {
      const int d0 = 8 * (warp + kWarps * i);
      if (d0 >= dim) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) out[i][c] = contract::Mul(out[i][c], c < 2 ? rescale0 : rescale8);
      const int d = d0 + g;
      const auto value = [&](int slot) { return d < dim ? static_cast<std::uint32_t>(keys[slot * key_stride + d]) : 0u; };
#pragma unroll
      for (int k = 0; k < kSlots; k += 16) {
        const FragmentA fragment = LoadA(s.weight[g], s.weight[g + 8], k, kSlots);
        MmaBF16(out[i], fragment, value(k + 2 * q) | (value(k + 2 * q + 1) << 16), value(k + 2 * q + 8) | (value(k + 2 * q + 9) << 16));
      }
    }
  }

  // s.row is set; every thread calls.
  __device__ void Block(const RowFormat& format) {
    __syncthreads();
    for (int i = threadIdx.x; i < kSlots * dim; i += kThreads) {
      const int slot = i / dim, d = i % dim;
      keys[slot * key_stride + d] = s.row[slot] ? PackedChannel(format, s.row[slot], d) : std::uint16_t{0};
    }
    __syncthreads();
    Scores();
    __syncthreads();
    Softmax();
    __syncthreads();
    WeightedValues();
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kThreads) AttentionKernel(AttentionArgs a, float scale) {
  extern __shared__ __align__(16) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const std::int64_t t = blockIdx.y;
  const int head_begin = blockIdx.x * kHeads, lane = threadIdx.x & 31;
  TokenAttention attention{a, s, reinterpret_cast<std::uint16_t*>(memory + (sizeof(Shared) + 15) / 16 * 16), a.head_dim, a.head_dim + 8,
                           min(kHeads, a.heads - head_begin), static_cast<int>(threadIdx.x / 32), lane, lane / 4, lane & 3,
                           a.q_THD + (t * a.heads + head_begin) * a.head_dim, scale, {}};
  if (threadIdx.x < kHeads) {
    s.max[threadIdx.x] = -__int_as_float(0x7f800000);
    s.denominator[threadIdx.x] = 0.0f;
  }
  const AttentionRow row = a.row_T[t];
  const std::int64_t first = row.position - a.window + 1 > 0 ? row.position - a.window + 1 : 0;
  for (std::int64_t base = first / kSlots * kSlots; base <= row.position; base += kSlots) {
    if (threadIdx.x < kSlots) {
      const std::int64_t p = base + threadIdx.x;
      s.row[threadIdx.x] = p >= first && p <= row.position ? WindowRow(row.window, p) : nullptr;
    }
    attention.Block(a.window_format);
  }
  const std::int32_t* selected = a.all_visible || !a.selected_TK ? nullptr : a.selected_TK + t * a.top_k;
  const std::int64_t count = a.all_visible ? row.visible : selected ? a.count_T[t] : 0;
  for (std::int64_t begin = 0; begin < count; begin += kSlots) {
    if (threadIdx.x < kSlots) {
      const std::int64_t i = begin + threadIdx.x;
      s.row[threadIdx.x] = i < count ? CompressedRow(row.compressed, selected ? selected[i] : i) : nullptr;
    }
    attention.Block(a.compressed_format);
  }
#pragma unroll
  for (int i = 0; i < kMaxTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int head = attention.g + (c < 2 ? 0 : 8), d = 8 * (attention.warp + kWarps * i) + 2 * attention.q + (c & 1);
      if (head >= attention.heads || d >= a.head_dim) continue;
      const float denominator = contract::Add(s.denominator[head], contract::Exp(contract::Sub(a.sink_H[head_begin + head], s.max[head])));
      a.out_THD[(t * a.heads + head_begin + head) * a.head_dim + d] = BF16Bits(contract::Div(attention.out[i][c], denominator));
    }
  }
}

void RunAttention(Stream& stream, const AttentionArgs& a) {
  const std::size_t bytes = (sizeof(Shared) + 15) / 16 * 16 + static_cast<std::size_t>(kSlots * (a.head_dim + 8)) * 2;
  CheckCuda(cudaFuncSetAttribute(AttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "attention shared memory");
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.head_dim)));
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < a.rows; begin += kMaxGridY) {
    AttentionArgs part = a;
    part.row_T += begin;
    part.q_THD += begin * a.heads * a.head_dim;
    part.out_THD += begin * a.heads * a.head_dim;
    if (a.selected_TK) part.selected_TK += begin * a.top_k, part.count_T += begin;
    const auto rows = static_cast<unsigned>(a.rows - begin < kMaxGridY ? a.rows - begin : kMaxGridY);
    AttentionKernel<<<dim3(Blocks(a.heads, kHeads), rows), kThreads, bytes, AsCuda(stream).handle()>>>(part, scale);
  }
  CheckLaunch("attention");
}

}  // namespace

Kernel<AttentionArgs> CudaAttention() { return {&RunAttention, "attention/H(sm90)"}; }

}  // namespace lockstep::kernels
