// The packed row formats of kv_rows.h on the device: values of single channels, and packing by one warp. docs/numerics.md section 5.
#pragma once

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
