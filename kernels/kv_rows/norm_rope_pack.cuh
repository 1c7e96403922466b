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

// Row i of a call. Made before the wait for other kernels: weights and angles do not come from one.
class NormRopePackRow {
 public:
  static constexpr int kThreads = 256, kChunks = 4;  // of the block, and of 128 channels in its norms

  static bool Takes(const NormRopePackArgs& a) {
    const bool by_fours = a.rope.width % 4 == 0 && a.rope.rope_dim % 4 == 0 && a.norm.x_stride % 4 == 0;
    return by_fours && a.rope.width <= kChunks * kLanesF && a.rope.heads == 1 && a.pack.x_stride == a.rope.width;
  }

  __device__ NormRopePackRow(const NormRopePackArgs& args, std::int64_t i, const PackedForm& packed)
      : a(args), form(packed), targets(args.pack, i, packed.row_bytes), n(args.rope.width), d(kLanesF * static_cast<int>(threadIdx.x / 32) + Row::First()) {
    const int turning = d - (n - a.rope.rope_dim);
    turns = mine() && turning >= 0;
    if (turns) angles = FourAngles(AnglesOf(a.rope, i) + turning / 2, a.rope.rope_dim / 2, a.rope.inverse);
    if (mine() && a.norm.rows > 0 && a.norm.weight) weight = *reinterpret_cast<const float4*>(a.norm.weight + d);
  }

  // Its channels are at `in`. Every warp takes the norm and a chunk of it, then all pack. `out`: where the row goes unpacked, or null.
  __device__ void Run(const std::uint16_t* in, std::uint16_t* out) const {
    uint2 y = mine() ? *reinterpret_cast<const uint2*>(in + d) : make_uint2(0u, 0u);
    if (d < kChunks * kLanesF && a.norm.rows > 0) y = ScaleFour(y, Row(in, n).Scale(a.norm.eps), weight);
    if (turns) y = RotateFour(y, angles);
    if (out) __syncthreads();  // all have read what is written now
    if (out && mine()) *reinterpret_cast<uint2*>(out + d) = y;
    if (targets.none()) return;
    if (PacksByFours(a.pack.format)) return PackFour(y);
    __shared__ __align__(16) float x[kMaxPackedWidth];
    if (mine()) *reinterpret_cast<float4*>(x + d) = WidenFour(y);
    __syncthreads();
    PackRow(a.pack.format, x, form.hadamard_scale, targets);
  }

 private:
  using Row = NormRow<kChunks>;
  __device__ bool mine() const { return d < n; }  // n is at most the chunks'

  // FP8 rows whose quantizer blocks are neighbouring threads of a warp.
  __device__ static bool PacksByFours(const RowFormat& f) {
    return f.kind == RowFormat::Kind::kFp8 && (f.block & (f.block - 1)) == 0 && f.block >= 4 && f.block <= kLanesF && f.quantized % f.block == 0;
  }

  // The thread's four channels, which stay in its registers.
  __device__ void PackFour(uint2 bits) const {
    const RowFormat& f = a.pack.format;
    const float4 v = WidenFour(bits);
    float top = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll 1
    for (int stride = 1; stride < f.block / 4; stride *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, stride));
    if (!mine()) return;
    const unsigned scale = Fp8Exponent(top);
    const float inverse = PowerOfExponent(254 - scale);  // a power of two: multiplying by it is dividing by the scale
    const auto code = [inverse](float x) { return Fp8Code(contract::Mul(x, inverse)); };
    const unsigned codes = code(v.x) | code(v.y) << 8 | code(v.z) << 16 | code(v.w) << 24;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      auto* row = reinterpret_cast<std::uint8_t*>(i == 0 ? targets.flat : targets.listed);
      if (!row) continue;
      if (d < f.quantized) {
        *reinterpret_cast<unsigned*>(row + d) = codes;
        if (d % f.block == 0) row[f.quantized + d / f.block] = static_cast<std::uint8_t>(scale);
      } else {
        StoreTail(row + f.quantized + f.quantized / f.block + 2 * (d - f.quantized), bits);
      }
    }
  }

  // Four channels as they are, where nothing is aligned.
  __device__ static void StoreTail(std::uint8_t* to, uint2 bits) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = static_cast<std::uint8_t>((i < 4 ? bits.x : bits.y) >> (8 * (i % 4)));
  }

  const NormRopePackArgs& a;
  const PackedForm& form;
  const PackTargets targets;
  const int n, d;  // channels, and the thread's first
  bool turns = false;
  FourAngles angles;
  float4 weight = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
};

}  // namespace lockstep::kernels
