// The packed row formats of kv_rows.h on the device: values of single channels, and packing by one warp. docs/numerics.md section 5.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

__device__ inline float PowerOfExponent(unsigned exponent) { return __uint_as_float(exponent << 23); }

__device__ inline float E4M3Value(unsigned code) {
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

__device__ inline unsigned E2M1Code(float value) {
  const float a = fabsf(value);
  const unsigned code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return code | (__float_as_uint(value) >> 31 << 3);
}

__device__ inline unsigned CeilExponent(float x) {
  const unsigned bits = __float_as_uint(x);
  return (bits >> 23) + ((bits & 0x7fffffu) ? 1u : 0u);
}

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

// Four FP4 codes (the low 16 bits) as bf16.
__device__ inline uint2 Fp4Values(unsigned codes) {
  // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6: high and low bytes, chosen by the three magnitude bits.
  const unsigned magnitude = codes & 0x7777u, sign = __byte_perm(0x8000u, 0u, (codes >> 3) & 0x1111u);
  const unsigned high = __byte_perm(0x3f3f3f00u, 0x40404040u, magnitude) | sign, low = __byte_perm(0xc0800000u, 0xc0804000u, magnitude);
  return make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}

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

// Four E4M3 codes times a power of two as bf16.
__device__ inline uint2 ScaledFp8(unsigned codes, float scale) {
  unsigned pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes >> (16 * i)), __NV_E4M3);
    const float2 value = __half22float2(__half2(raw));
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(contract::Mul(value.x, scale), contract::Mul(value.y, scale));
    pair[i] = *reinterpret_cast<const unsigned*>(&rounded);
  }
  return make_uint2(pair[0], pair[1]);
}

// Channels d .. d+7 of a packed row as bf16 bits, d a multiple of 8. The row is 4-byte aligned and its format readable by eights.
__device__ inline uint4 PackedEight(const RowFormat& f, const std::byte* row, int d) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
  const auto* words = reinterpret_cast<const std::uint32_t*>(row);
  if (f.kind == RowFormat::Kind::kBf16) return make_uint4(words[d / 2], words[d / 2 + 1], words[d / 2 + 2], words[d / 2 + 3]);
  const int shift = 31 - __clz(f.block);
  uint2 low, high;
  if (f.kind != RowFormat::Kind::kFp8) {
    const unsigned code = bytes[f.width / 2 + (d >> shift)], codes = words[d / 8];
    const __nv_bfloat162 scale = __float2bfloat162_rn(f.kind == RowFormat::Kind::kFp4E4M3 ? E4M3Value(code) : PowerOfExponent(code));
    low = ScaledFp4(codes & 0xffffu, scale);
    high = ScaledFp4(codes >> 16, scale);
  } else if (d < f.quantized) {
    const float scale = PowerOfExponent(bytes[f.quantized + (d >> shift)]);
    low = ScaledFp8(words[d / 4], scale);
    high = ScaledFp8(words[d / 4 + 1], scale);
  } else {  // bf16 values behind an odd number of scales
    const int at = f.quantized + ((f.quantized + f.block - 1) >> shift) + 2 * (d - f.quantized), offset = 8 * (at & 3);
    const std::uint32_t* first = words + at / 4;
    unsigned word[5];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = first[i];
    word[4] = offset == 0 ? 0u : first[4];
    low = make_uint2(__funnelshift_r(word[0], word[1], offset), __funnelshift_r(word[1], word[2], offset));
    high = make_uint2(__funnelshift_r(word[2], word[3], offset), __funnelshift_r(word[3], word[4], offset));
  }
  return make_uint4(low.x, low.y, high.x, high.y);
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
    float scale, limit = 6.0f;
    if (f.kind == RowFormat::Kind::kFp8) {
      scale_byte = CeilExponent(contract::Mul(fmaxf(top, 1e-4f), static_cast<float>(1.0 / 448.0)));
      scale = PowerOfExponent(scale_byte);
      limit = 448.0f;
    } else if (f.kind == RowFormat::Kind::kFp4E4M3) {
      scale_byte = E4M3Code(fminf(contract::Div(fmaxf(top, 6.0f * 0x1p-9f), 6.0f), 448.0f));
      scale = E4M3Value(scale_byte);
    } else {
      scale_byte = CeilExponent(contract::Mul(fmaxf(top, 6.0f * 0x1p-126f), static_cast<float>(1.0 / 6.0)));
      scale = PowerOfExponent(scale_byte);
    }
    if (lane == 0) scales[b] = static_cast<std::uint8_t>(scale_byte);
    for (int d = begin + lane; d < end; d += 32) {
      const float v = fmaxf(fminf(contract::Div(x[d], scale), limit), -limit);
      codes[d] = static_cast<std::uint8_t>(f.kind == RowFormat::Kind::kFp8 ? E4M3Code(v) : E2M1Code(v));
    }
  }
}

}  // namespace lockstep::kernels
