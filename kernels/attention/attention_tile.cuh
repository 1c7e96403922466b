// Attention of many rows: a block a row and 64 heads. Keys come in blocks of 64 slots and are unpacked once for all heads, which are the rows
// of the MMA; the next block's packed rows are on their way meanwhile. Contract: docs/numerics.md section 6, Attention.
#pragma once

#include "kernels/attention/attention_list.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

struct AttentionTile {
  static constexpr int kThreads = 512, kWarps = kThreads / 32;
  static constexpr int kHeads = 64, kSlots = kAttentionSlots;
  static constexpr int kDimsPerWarp = 32;  // of the output: sixteen warps hold the 512 channels
  static constexpr int kMaxDim = kWarps * kDimsPerWarp;
  static constexpr int kScoreStride = kSlots + 8, kWeightStride = kSlots + 8;  // rows of neighbouring heads in other banks

  // Where things lie in shared memory, in bytes.
  struct Layout {
    int padded, stride;  // channels of a query or key row; elements from row to row
    int raw_stride;
    int keys, raw, score, weight, rescale, address, bytes;

    Layout(int head_dim, std::int64_t row_bytes) {
      padded = (head_dim + kDimsPerWarp - 1) / kDimsPerWarp * kDimsPerWarp;
      stride = padded + 8;
      raw_stride = static_cast<int>((row_bytes + 15) / 16 * 16);
      keys = kHeads * stride * 2;
      raw = keys + kSlots * stride * 2;
      score = raw + kSlots * raw_stride;
      weight = score + kHeads * kScoreStride * 4;
      rescale = weight + kHeads * kWeightStride * 2;
      address = rescale + kHeads * 4;
      bytes = address + 2 * kSlots * 8;
    }
  };

  const AttentionArgs& a;
  const Layout& l;
  const std::int64_t t;
  const int head_begin, heads, warp, lane, g, q;
  const float scale;
  const KeyList list;
  std::uint16_t *queries, *keys, *weight;
  std::byte* raw;
  float *score, *rescale;
  const std::byte** address;  // [2][kSlots]
  float max = NoScore(), denominator = 0.0f;  // of the thread's head in Softmax
  float out[4][4][4] = {};                    // heads 16 m + .. x channels 32 * warp + 8 n + ..

  // `item`: a row and 64 heads of it.
  __device__ AttentionTile(const AttentionArgs& args, const Layout& layout, float score_scale, std::int64_t item, std::byte* memory)
      : a(args), l(layout), t(item / ((args.heads + kHeads - 1) / kHeads)), head_begin(static_cast<int>(item % ((args.heads + kHeads - 1) / kHeads)) * kHeads),
        heads(min(kHeads, args.heads - head_begin)), warp(threadIdx.x / 32), lane(threadIdx.x & 31), g(lane / 4), q(lane & 3), scale(score_scale),
        list(args, t), queries(reinterpret_cast<std::uint16_t*>(memory)), keys(reinterpret_cast<std::uint16_t*>(memory + layout.keys)),
        weight(reinterpret_cast<std::uint16_t*>(memory + layout.weight)), raw(memory + layout.raw), score(reinterpret_cast<float*>(memory + layout.score)),
        rescale(reinterpret_cast<float*>(memory + layout.rescale)), address(reinterpret_cast<const std::byte**>(memory + layout.address)) {}

  __device__ void Run() {
    LoadQueries();
    SetAddresses(0, NextAddress(0));
    SetAddresses(1, NextAddress(1));
    __syncthreads();
    Fetch(0);
    for (int b = 0; b < list.blocks; ++b) {
      const FilledSlots filled = list.Filled(b);
      WaitForCopies<0>();
      __syncthreads();  // the raw rows are there, and the keys of the block before are read
      Unpack(b, filled);
      __syncthreads();
      Fetch(b + 1);
      const std::byte* next = NextAddress(b + 2);
      Scores(filled);
      __syncthreads();
      Softmax(filled);
      SetAddresses(b + 2, next);
      __syncthreads();
      WeightedValues(filled);
    }
    Store();
  }

 private:
  __device__ void LoadQueries() {
    for (int h = warp; h < kHeads; h += kWarps) {
      const std::uint16_t* in = a.q_THD + (t * a.heads + head_begin + h) * a.head_dim;
      if (a.head_dim % 8 == 0) {
        for (int d = 8 * lane; d < l.padded; d += 256) {
          const bool inside = h < heads && d < a.head_dim;
          *reinterpret_cast<uint4*>(queries + h * l.stride + d) = inside ? *reinterpret_cast<const uint4*>(in + d) : make_uint4(0u, 0u, 0u, 0u);
        }
      } else {
        for (int d = lane; d < l.padded; d += 32) queries[h * l.stride + d] = h < heads && d < a.head_dim ? in[d] : std::uint16_t{0};
      }
    }
  }

  // This thread's slot of block b, for the first 64 threads.
  __device__ const std::byte* NextAddress(int b) const {
    const int slot = threadIdx.x;
    return b < list.blocks && slot < kSlots && list.Filled(b).Has(slot) ? list.Address(b, slot) : nullptr;
  }
  __device__ void SetAddresses(int b, const std::byte* row) {
    if (threadIdx.x < kSlots) address[b % 2 * kSlots + threadIdx.x] = row;
  }

  // Four threads a row.
  template <int kUnit>
  __device__ void FetchRow(const std::byte* from, std::byte* to, int row_bytes) {
    constexpr int kThreadsPerRow = kThreads / kSlots;
#pragma unroll 4
    for (int i = kUnit * (threadIdx.x % kThreadsPerRow); i < row_bytes; i += kUnit * kThreadsPerRow) CopyAsync<kUnit>(to + i, from + i);
  }
  __device__ void Fetch(int b) {
    if (b >= list.blocks) return;
    const int bytes = list.IsWindow(b) ? static_cast<int>(list.row.window.row_bytes) : list.row.compressed.row_bytes, slot = threadIdx.x / (kThreads / kSlots);
    const std::byte* from = address[b % 2 * kSlots + slot];
    if (from) {
      std::byte* to = raw + slot * l.raw_stride;
      const auto bits = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from)) | static_cast<unsigned>(bytes);
      if (bits % 16 == 0) FetchRow<16>(from, to, bytes);
      else if (bits % 8 == 0) FetchRow<8>(from, to, bytes);
      else FetchRow<4>(from, to, bytes);
    }
    CommitCopies();
  }

  // Packed rows to keys; empty slots become +0 where an MMA reads them.
  __device__ void Unpack(int b, FilledSlots filled) {
    WithReader(list.IsWindow(b) ? a.window_format : a.compressed_format, [&](const auto& reader) {
#pragma unroll 2
      for (int slot = warp; slot < kSlots; slot += kWarps) {
        if (!filled.AnyOf(slot & ~15, 16)) continue;
        const bool has = filled.Has(slot);
#pragma unroll
        for (int d = 8 * lane; d < kMaxDim; d += 256) {
          if (d >= l.padded) break;
          *reinterpret_cast<uint4*>(keys + slot * l.stride + d) = has ? reader(raw + slot * l.raw_stride, d) : make_uint4(0u, 0u, 0u, 0u);
        }
      }
    });
  }

  // A warp: 32 heads x 8 slots.
  __device__ void Scores(FilledSlots filled) {
    const int head0 = warp % 2 * 32, slot0 = warp / 2 * 8;
    if (!filled.AnyOf(slot0, 8)) return;
    float c[2][4] = {};
#pragma unroll 4
    for (int k = 0; k < l.padded; k += 32) {
      std::uint32_t b[4];  // of two MMA blocks
      LoadMatrices(b, keys + (slot0 + (lane & 7)) * l.stride + k + (lane >> 3) * 8);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) MmaBF16(c[m], LoadTileA(queries, l.stride, head0 + 16 * m, k + 16 * i), b[2 * i], b[2 * i + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, low = i % 2;
      float* to = score + (head0 + 16 * m + 8 * low + g) * kScoreStride + slot0 + 2 * q;
      *reinterpret_cast<float2*>(to) = make_float2(contract::Mul(c[m][2 * low], scale), contract::Mul(c[m][2 * low + 1], scale));
    }
  }

  // Eight threads a head.
  using Share = SlotShare<2>;
  __device__ void Softmax(FilledSlots filled) {
    const int head = Share::Head();
    Share s;
    s.Load(score + head * kScoreStride);
    s.Mask(filled);
    const float top = fmaxf(max, s.Max()), factor = Rescale(max, top);
    s.Weigh(top);
    s.StoreBF16(weight + head * kWeightStride);
    denominator = contract::Fma(denominator, factor, s.Fold());
    max = top;
    if (Share::Part() == 0) rescale[head] = factor;
  }

  // A warp: all heads x 32 channels. Sixteen empty slots change nothing but a -0, which the block's other products turn to +0 as they would.
  __device__ void WeightedValues(FilledSlots filled) {
    const int channel0 = warp * kDimsPerWarp;
    if (channel0 >= l.padded) return;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float factor0 = rescale[16 * m + g], factor8 = rescale[16 * m + 8 + g];
#pragma unroll
      for (int i = 0; i < 16; ++i) out[m][i / 4][i % 4] = contract::Mul(out[m][i / 4][i % 4], i % 4 < 2 ? factor0 : factor8);
    }
#pragma unroll
    for (int k = 0; k < kSlots; k += 16) {
      if (!filled.AnyOf(k, 16)) continue;
      std::uint32_t b[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) LoadTileBTransposed(b[n], keys, l.stride, channel0 + 16 * n, k);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const FragmentA fragment = LoadTileA(weight, kWeightStride, 16 * m, k);
#pragma unroll
        for (int n = 0; n < 4; ++n) MmaBF16(out[m][n], fragment, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }

  __device__ void Store() {
    const int own_head = Share::Head();
    __syncthreads();
    if (Share::Part() == 0) {
      const float sink = own_head < heads ? a.sink_H[head_begin + own_head] : 0.0f;
      rescale[own_head] = contract::Add(denominator, contract::Exp(contract::Sub(sink, max)));
    }
    __syncthreads();
    if (warp * kDimsPerWarp < l.padded) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {  // through shared memory, so that rows are written whole
        const int m = i / 8, n = i / 2 % 4, low = i % 2, row = 16 * m + 8 * low + g;
        const int channel = warp * kDimsPerWarp + 8 * n + 2 * q;
        const float divisor = rescale[row];
        *reinterpret_cast<std::uint32_t*>(queries + row * l.stride + channel) =
            TurnBack(a, list.row.position, channel, PackBF16(contract::Div(out[m][n][2 * low], divisor), contract::Div(out[m][n][2 * low + 1], divisor)));
      }
    }
    __syncthreads();
    for (int h = warp; h < heads; h += kWarps) {
      std::uint16_t* to = a.out_THD + (t * a.heads + head_begin + h) * a.head_dim;
      if (a.head_dim % 8 == 0) {
        for (int d = 8 * lane; d < a.head_dim; d += 256) *reinterpret_cast<uint4*>(to + d) = *reinterpret_cast<const uint4*>(queries + h * l.stride + d);
      } else {
        for (int d = lane; d < a.head_dim; d += 32) to[d] = queries[h * l.stride + d];
      }
    }
  }
};

}  // namespace lockstep::kernels
