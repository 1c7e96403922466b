// A row of the KV state from its projection or latent to its packed form, by a block. Contract: docs/numerics.md section 5.
#pragma once

#include <cmath>

#include "kernels/elementwise/norm_row.cuh"
#include "kernels/kv_rows/kv_pack.cuh"

namespace lockstep::kernels {

// Sizes of a format that the host knows.
struct PackedForm {
  std::int64_t row_bytes;
  float hadamard_scale;
  explicit PackedForm(const RowFormat& f) : row_bytes(f.row_bytes()), hadamard_scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(f.width)))) {}
};

struct NormRopePackRow {
  static constexpr int kThreads = 256, kChunks = 4;  // of the block, and of 128 channels in its norms

  static bool Takes(const NormRopePackArgs& a) {
    const bool by_fours = a.rope.width % 4 == 0 && a.rope.rope_dim % 4 == 0 && a.norm.x_stride % 4 == 0;
    return by_fours && a.rope.width <= kChunks * kLanesF && a.rope.heads == 1 && a.pack.x_stride == a.rope.width;
  }

  // Row i, whose channels are at `in`. Every warp takes its norm and a chunk of it, then all pack. `out`: where it goes unpacked, or null.
  __device__ static void Run(const NormRopePackArgs& a, std::int64_t i, const PackedForm& form, const std::uint16_t* in, std::uint16_t* out) {
    __shared__ __align__(16) float x[kMaxPackedWidth];
    using Row = NormRow<kChunks>;
    const PackTargets targets(a.pack, i, form.row_bytes);
    const int chunk = threadIdx.x / 32, d = kLanesF * chunk + Row::First(), n = a.rope.width, turning = d - (n - a.rope.rope_dim);
    const bool mine = chunk < kChunks && d < n;
    uint2 y = make_uint2(0u, 0u);
    if (chunk < kChunks) {
      const float* angles = AnglesOf(a.rope, i);
      if (mine) y = *reinterpret_cast<const uint2*>(in + d);
      if (a.norm.rows > 0) {
        const float r = Row(in, n).Scale(a.norm.eps);
        if (mine) y = ScaleFour(y, r, a.norm.weight ? a.norm.weight + d : nullptr);
      }
      if (mine && turning >= 0) y = RotateFour(y, angles + turning / 2, a.rope.rope_dim / 2, a.rope.inverse);
      if (mine) *reinterpret_cast<float4*>(x + d) = WidenFour(y);
    }
    __syncthreads();  // all have read what is written now
    if (mine && out) *reinterpret_cast<uint2*>(out + d) = y;
    if (!targets.none()) PackRow(a.pack.format, x, form.hadamard_scale, targets);
  }
};

}  // namespace lockstep::kernels
