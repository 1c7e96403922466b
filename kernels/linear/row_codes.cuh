// From rows to codes where there are many blocks to prepare: eight lanes a 128-block, sixteen inputs each (docs/numerics.md section 4).
#pragma once

#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/row_butterfly.cuh"
#include "kernels/linear/swiglu.cuh"

namespace lockstep::kernels {

__device__ inline void Unpack(std::uint32_t pair, float* v) { v[0] = __uint_as_float(pair << 16), v[1] = __uint_as_float(pair & 0xffff0000u); }

// bf16 values k .. k+15 of a row; zeros from `n` on.
__device__ inline void LoadValues(const std::uint16_t* row, int k, int n, float (&v)[RowButterfly::kValues]) {
  const std::uint16_t* from = row + k;
  if (k + RowButterfly::kValues <= n && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 bits = reinterpret_cast<const uint4*>(from)[i];
      Unpack(bits.x, v + 8 * i), Unpack(bits.y, v + 8 * i + 2), Unpack(bits.z, v + 8 * i + 4), Unpack(bits.w, v + 8 * i + 6);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < RowButterfly::kValues; ++i) v[i] = k + i < n ? BF16Value(from[i]) : 0.0f;
}

// Where the inputs of a row are.
struct RowInputs {
  const std::uint16_t* x;
  const std::uint16_t* up;  // null: x is no gate
  float weight, limit;
  int in_features;

  __device__ RowInputs(const Exl3Call& call, int part, std::int64_t row) : limit(call.input.limit), in_features(call.in_features) {
    const Exl3Input& input = call.input;
    const std::int64_t at = call.InputRow(row) * call.parts[part].x_stride;
    x = call.parts[part].x + at;
    up = input.up ? input.up + at : nullptr;
    weight = input.up ? call.Weight(row) : 1.0f;
  }
};

// Inputs k .. k+15 of a row.
__device__ inline void LoadInput(const RowInputs& row, int k, float (&v)[RowButterfly::kValues]) {
  LoadValues(row.x, k, row.in_features, v);
  if (!row.up) return;
  float up[RowButterfly::kValues];
  LoadValues(row.up, k, row.in_features, up);
#pragma unroll
  for (int i = 0; i < RowButterfly::kValues; ++i) v[i] = BF16Value(Swiglu(v[i], up[i], row.weight, row.limit));
}

// The same times suh.
__device__ inline void LoadScaledInput(const Exl3Job& job, const RowInputs& row, int k, float (&v)[RowButterfly::kValues]) {
  float4 suh[RowButterfly::kValues / 4];
#pragma unroll
  for (int i = 0; i < RowButterfly::kValues / 4; ++i) suh[i] = reinterpret_cast<const float4*>(job.input_scale + k)[i];
  LoadInput(row, k, v);
#pragma unroll
  for (int i = 0; i < RowButterfly::kValues / 4; ++i) {
    v[4 * i] = contract::Mul(v[4 * i], suh[i].x), v[4 * i + 1] = contract::Mul(v[4 * i + 1], suh[i].y);
    v[4 * i + 2] = contract::Mul(v[4 * i + 2], suh[i].z), v[4 * i + 3] = contract::Mul(v[4 * i + 3], suh[i].w);
  }
}

template <class Operation>
__device__ float ReduceRow(float value, const Operation& operation) {
#pragma unroll
  for (int mask = 1; mask < RowButterfly::kLanes; mask *= 2) value = operation(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

// Family H: rounded to fp16, butterfly, rounded again. True: a value is beyond fp16.
__device__ inline bool HalfCodes(const RowButterfly& butterfly, float (&v)[RowButterfly::kValues]) {
  bool overflow = false;
  const auto round = [&] {
#pragma unroll
    for (float& value : v) {
      const __half rounded = __float2half_rn(value);
      overflow = overflow || __hisinf(rounded);
      value = __half2float(rounded);
    }
  };
  round();
  butterfly.Transform(v);
  round();
  return overflow;
}

// rint of |x| < 2^22, never -0: the sum rounds to even where its last bit is worth 1.
__device__ inline float RoundToEven(float x) { return contract::Sub(contract::Add(x, 0x1.8p23f), 0x1.8p23f); }

// Family I: integer codes in place of the values, and their scale and sum, which all lanes of the row get. Codes and their sum are exact in fp32.
__device__ inline ScaleSum IntegerCodes(const RowButterfly& butterfly, float limit, float (&v)[RowButterfly::kValues]) {
  butterfly.Transform(v);
  float top = fabsf(v[0]);  // NaN if all are: a NaN input must show
#pragma unroll
  for (float value : v) top = fmaxf(top, fabsf(value));
  top = ReduceRow(top, [](float a, float b) { return fmaxf(a, b); });
  const bool zero = top < 0x1p-100f;
  const float inverse = zero ? 0.0f : contract::Div(limit, top);
  // No finite value needs the bounds: at most `limit` and two roundings, it rounds to `limit`. And times zero it is zero.
#pragma unroll
  for (float& value : v) value = RoundToEven(contract::Mul(value, inverse));
  if (!(top < INFINITY)) {
#pragma unroll
    for (float& value : v) value = fmaxf(fminf(value, limit), -limit);
  }
  float sum = 0.0f;
#pragma unroll
  for (float value : v) sum = contract::Add(sum, value);
  sum = ReduceRow(sum, [](float a, float b) { return contract::Add(a, b); });
  return {zero ? 0.0f : contract::Div(top, limit), static_cast<std::int32_t>(sum)};
}

// int16 codes as 256 * high + low, low in -128 .. 127.
__device__ inline void SplitCodes(const float (&code)[RowButterfly::kValues], float (&high)[RowButterfly::kValues], float (&low)[RowButterfly::kValues]) {
#pragma unroll
  for (int i = 0; i < RowButterfly::kValues; ++i) {
    const int whole = static_cast<int>(code[i]), upper = (whole + 128) >> 8;
    high[i] = static_cast<float>(upper), low[i] = static_cast<float>(whole - 256 * upper);
  }
}

}  // namespace lockstep::kernels
