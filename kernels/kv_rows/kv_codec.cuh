// The packed row formats of kv_rows.h on the device: values of single channels, and packing by one warp. docs/numerics.md section 5.
#pragma once

#include <cuda_bf16.h>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

__device__ inline float PowerOfExponent(unsigned exponent) { return __uint_as_float(exponent << 23); }

// NaN for the NaN code: what must not be read is filled with it.
__device__ inline float E4M3Value(unsigned code) {
  if ((code & 0x7fu) == 0x7fu) return __uint_as_float(0x7fc00000u);
  const unsigned exponent = (code >> 3) & 0xf, mantissa = code & 7;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f : static_cast<float>(8 + mantissa) * PowerOfExponent(exponent - 10 + 127);
  return (code & 0x80) ? -magnitude : magnitude;
}

__device__ inline unsigned E4M3Code(float value) {
  const unsigned bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 24) & 0x80u;
  if (magnitude < 0x3c800000u) return sign | (__float_as_uint(contract::Add(__uint_as_float(magnitude), 0x1p14f)) - 0x46800000u);
  return sign | ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u) >> 20);
}

__device__ inline float E2M1Value(unsigned code) {
  const unsigned m = code & 7u;
  const float magnitude = m < 2 ? 0.5f * static_cast<float>(m) : static_cast<float>((2u | (m & 1u)) << (m >> 1)) * 0.25f;
  return (code & 8u) ? -magnitude : magnitude;
}

// Of a block of E4M3 codes: the scale's exponent byte from its largest magnitude, and a code from a channel over the scale.
__device__ inline unsigned CeilExponent(float x) {
  const unsigned bits = __float_as_uint(x);
  return (bits >> 23) + ((bits & 0x7fffffu) ? 1u : 0u);
}
__device__ inline unsigned Fp8Exponent(float top) { return CeilExponent(contract::Mul(fmaxf(top, 1e-4f), static_cast<float>(1.0 / 448.0))); }
__device__ inline unsigned Fp8Code(float scaled) { return E4M3Code(fmaxf(fminf(scaled, 448.0f), -448.0f)); }

__device__ inline unsigned E2M1Code(float value) {
  const float a = fabsf(value);
  const unsigned code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return code | (__float_as_uint(value) >> 31 << 3);
}

// The exponent of the E8M0 scale of an FP4 block whose largest magnitude is `top`.
__device__ inline unsigned Fp4Exponent(float top) { return CeilExponent(contract::Mul(fmaxf(top, 6.0f * 0x1p-126f), static_cast<float>(1.0 / 6.0))); }

// Channel d of a packed row as bf16 bits.
__device__ inline std::uint16_t PackedChannel(const RowFormat& f, const std::byte* row, int d) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
  switch (f.kind) {
    case RowFormat::Kind::kBf16:
      return reinterpret_cast<const std::uint16_t*>(row)[d];
    case RowFormat::Kind::kFp8: {
      const int scales = (f.quantized + f.block - 1) / f.block;
      if (d >= f.quantized) {
        const std::uint8_t* tail = bytes + f.quantized + scales + 2 * (d - f.quantized);
        return static_cast<std::uint16_t>(tail[0] | (tail[1] << 8));
      }
      return BF16Bits(contract::Mul(E4M3Value(bytes[d]), PowerOfExponent(bytes[f.quantized + d / f.block])));
    }
    default: {
      const unsigned code = (bytes[d / 2] >> (d % 2 * 4)) & 0xfu, scale = bytes[(f.width + 1) / 2 + d / f.block];
      return BF16Bits(contract::Mul(E2M1Value(code), f.kind == RowFormat::Kind::kFp4E4M3 ? E4M3Value(scale) : PowerOfExponent(scale)));
    }
  }
}

// Whether a format's rows can be read eight channels at a time: no eight channels straddle two scales or two kinds of storage.
__host__ __device__ inline bool ReadableByEights(const RowFormat& f) {
  return f.width % 8 == 0 && f.quantized % 8 == 0 && (f.kind == RowFormat::Kind::kBf16 || (f.block % 8 == 0 && (f.block & (f.block - 1)) == 0));
}

// log2 of a quantizer block that is a power of two.
__device__ inline int BlockShift(const RowFormat& f) { return 31 - __clz(f.block); }

// Four FP4 codes (the low 16 bits) as bf16. The bytes are a table of signs and of bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6, high and low, chosen by bits of the codes.
__device__ inline uint2 Fp4Values(unsigned codes, unsigned sign_bytes = 0x8000u, unsigned high_bytes = 0x3f3f3f00u, unsigned low_bytes = 0xc0800000u) {
  const unsigned magnitude = codes & 0x7777u, sign = __byte_perm(sign_bytes, 0u, (codes >> 3) & 0x1111u);
  const unsigned high = __byte_perm(high_bytes, 0x40404040u, magnitude) | sign, low = __byte_perm(low_bytes, 0xc0804000u, magnitude);
  return make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}

// Its table in registers of a loop, where the compiler would make the constants again for each use.
struct Fp4Bytes {
  unsigned sign = 0x8000u, high = 0x3f3f3f00u, low = 0xc0800000u;

  __device__ Fp4Bytes() { asm volatile("" : "+r"(sign), "+r"(high), "+r"(low)); }
  __device__ uint2 Values(unsigned codes) const { return Fp4Values(codes, sign, high, low); }
};

// The same times a bf16 scale: exact where the product has at most eight significant bits, as with every scale here.
__device__ inline uint2 ScaledFp4(unsigned codes, __nv_bfloat162 scale) {
  uint2 pairs = Fp4Values(codes);
  const auto scaled = [scale](unsigned& pair) {
    const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), scale);
    pair = *reinterpret_cast<const unsigned*>(&product);
  };
  scaled(pairs.x);
  scaled(pairs.y);
  return pairs;
}

__device__ inline __nv_bfloat162 PowerPair(unsigned exponent) {
  const unsigned pair = exponent * 0x00800080u;
  return *reinterpret_cast<const __nv_bfloat162*>(&pair);
}

// Four E4M3 codes times the power of two of `scale_exponent` as bf16. A code's exponent and mantissa are a bf16's, 2^120 too small.
__device__ inline uint2 ScaledFp8(unsigned codes, unsigned scale_exponent) {
  const __nv_bfloat162 bias = PowerPair(120 + 127), scale = PowerPair(scale_exponent);
  unsigned pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned spread = __byte_perm(codes, 0u, i == 0 ? 0x1404u : 0x3424u), bits = (spread >> 4 & 0x07f007f0u) | (spread & 0x80008000u);
    const __nv_bfloat162 value = __hmul2(__hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), bias), scale);
    pair[i] = *reinterpret_cast<const unsigned*>(&value);
  }
  return make_uint2(pair[0], pair[1]);
}

// Reads channels d .. d+7 (d a multiple of 8) of packed rows of one format as bf16 bits, +0 past the width. Rows are 16-byte aligned. What the
// format says is in registers, so that a loop over rows and channels has no more to ask.
template <RowFormat::Kind kKind>
struct EightsReader;

// Where all channels are stored alike. Inside: channels before the width.
template <class Reader>
struct AlikeChannels {
  __device__ static bool HasTail(int) { return false; }
  __device__ static uint4 Tail(const std::byte*, int) { return make_uint4(0u, 0u, 0u, 0u); }
  __device__ uint4 operator()(const std::byte* row, int d) const {
    const auto& reader = static_cast<const Reader&>(*this);
    return d < reader.width ? reader.Inside(row, d) : make_uint4(0u, 0u, 0u, 0u);
  }
};

template <>
struct EightsReader<RowFormat::Kind::kBf16> : AlikeChannels<EightsReader<RowFormat::Kind::kBf16>> {
  int width;
  __device__ explicit EightsReader(const RowFormat& f) : width(f.width) {}
  __device__ static uint4 Inside(const std::byte* row, int d) { return *reinterpret_cast<const uint4*>(row + 2 * d); }
};

template <>
struct EightsReader<RowFormat::Kind::kFp8> {
  int width, quantized, shift, tail;  // tail: where the bf16 channels begin
  __device__ explicit EightsReader(const RowFormat& f)
      : width(f.width), quantized(f.quantized), shift(BlockShift(f)), tail(f.quantized + (f.quantized + f.block - 1) / f.block) {}
  __device__ bool HasTail(int d) const { return d >= quantized; }
  // Of channels before the tail; of others nothing that means anything, from within the row.
  __device__ uint4 Inside(const std::byte* row, int d) const {
    const uint2 codes = *reinterpret_cast<const uint2*>(row + d);
    const auto scale = static_cast<unsigned>(row[quantized + (d >> shift)]);
    const uint2 low = ScaledFp8(codes.x, scale), high = ScaledFp8(codes.y, scale);
    return make_uint4(low.x, low.y, high.x, high.y);
  }
  __device__ uint4 Tail(const std::byte* row, int d) const {
    const int at = tail + 2 * (d - quantized), offset = 8 * (at & 3);  // behind an odd number of scales
    const std::uint32_t* first = reinterpret_cast<const std::uint32_t*>(row) + at / 4;
    const unsigned last = offset == 0 ? 0u : first[4];
    return make_uint4(__funnelshift_r(first[0], first[1], offset), __funnelshift_r(first[1], first[2], offset), __funnelshift_r(first[2], first[3], offset),
                      __funnelshift_r(first[3], last, offset));
  }
  __device__ uint4 operator()(const std::byte* row, int d) const {
    if (d >= width) return make_uint4(0u, 0u, 0u, 0u);
    return HasTail(d) ? Tail(row, d) : Inside(row, d);
  }
};

template <>
struct EightsReader<RowFormat::Kind::kFp4E4M3> : AlikeChannels<EightsReader<RowFormat::Kind::kFp4E4M3>> {
  int width, shift;
  __device__ explicit EightsReader(const RowFormat& f) : width(f.width), shift(BlockShift(f)) {}
  __device__ uint4 Inside(const std::byte* row, int d) const {
    const unsigned codes = reinterpret_cast<const std::uint32_t*>(row)[d / 8];
    const __nv_bfloat162 scale = __float2bfloat162_rn(E4M3Value(static_cast<unsigned>(row[width / 2 + (d >> shift)])));
    const uint2 low = ScaledFp4(codes & 0xffffu, scale), high = ScaledFp4(codes >> 16, scale);
    return make_uint4(low.x, low.y, high.x, high.y);
  }
};

// Any format, a channel at a time.
struct ChannelsReader : AlikeChannels<ChannelsReader> {
  RowFormat format;
  int width;
  __device__ explicit ChannelsReader(const RowFormat& f) : format(f), width((f.width + 7) / 8 * 8) {}
  __device__ std::uint32_t Channel(const std::byte* row, int d) const { return d < format.width ? PackedChannel(format, row, d) : 0u; }
  __device__ uint4 Inside(const std::byte* row, int d) const {
    std::uint32_t pair[4];
#pragma unroll 1
    for (int i = 0; i < 4; ++i) pair[i] = Channel(row, d + 2 * i) | Channel(row, d + 2 * i + 1) << 16;
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
};

// Calls `body` with the reader of a format of keys and values.
template <class Body>
__device__ inline void WithReader(const RowFormat& f, const Body& body) {
  const bool eights = ReadableByEights(f);
  if (eights && f.kind == RowFormat::Kind::kFp8) body(EightsReader<RowFormat::Kind::kFp8>(f));
  else if (eights && f.kind == RowFormat::Kind::kFp4E4M3) body(EightsReader<RowFormat::Kind::kFp4E4M3>(f));
  else if (eights && f.kind == RowFormat::Kind::kBf16) body(EightsReader<RowFormat::Kind::kBf16>(f));
  else body(ChannelsReader(f));
}

__device__ inline float MaxWarp(float x) {
  for (int stride = 16; stride > 0; stride /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, stride));
  return x;
}

inline constexpr int kMaxPackedWidth = 2048;

// Hadamard of x[n] (shared memory) by the calling block, n a power of two: strides 1, 2, 4, ..., times 1/sqrt(n), rounded to bf16.
__device__ inline void HadamardBlock(float* x, int n, float scale) {
  for (int stride = 1; stride < n; stride *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
      const int low = (i / stride) * 2 * stride + i % stride;
      const float a = x[low], b = x[low + stride];
      x[low] = contract::Add(a, b);
      x[low + stride] = contract::Sub(a, b);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = BF16Value(BF16Bits(contract::Mul(x[i], scale)));
  __syncthreads();
}

// Codes of x[width] (shared memory) into codes[width] and scale bytes into scales[], by the calling block, a warp a quantizer block.
__device__ inline void QuantizeBlocks(const RowFormat& f, const float* x, std::uint8_t* codes, std::uint8_t* scales) {
  const int width = f.kind == RowFormat::Kind::kFp8 ? f.quantized : f.width, lane = threadIdx.x & 31;
  for (int b = threadIdx.x / 32; b * f.block < width; b += blockDim.x / 32) {
    const int begin = b * f.block, end = min(begin + f.block, width);
    float top = 0.0f;
    for (int d = begin + lane; d < end; d += 32) top = fmaxf(top, fabsf(x[d]));
    top = MaxWarp(top);
    unsigned scale_byte;
    float scale;
    if (f.kind == RowFormat::Kind::kFp8) {
      scale_byte = Fp8Exponent(top);
      scale = PowerOfExponent(scale_byte);
    } else if (f.kind == RowFormat::Kind::kFp4E4M3) {
      scale_byte = E4M3Code(fminf(contract::Div(fmaxf(top, 6.0f * 0x1p-9f), 6.0f), 448.0f));
      scale = E4M3Value(scale_byte);
    } else {
      scale_byte = Fp4Exponent(top);
      scale = PowerOfExponent(scale_byte);
    }
    if (lane == 0) scales[b] = static_cast<std::uint8_t>(scale_byte);
    for (int d = begin + lane; d < end; d += 32) {
      const float scaled = contract::Div(x[d], scale);
      codes[d] = static_cast<std::uint8_t>(f.kind == RowFormat::Kind::kFp8 ? Fp8Code(scaled) : E2M1Code(fmaxf(fminf(scaled, 6.0f), -6.0f)));
    }
  }
}

}  // namespace lockstep::kernels
