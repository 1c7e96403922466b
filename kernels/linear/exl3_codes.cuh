// Codes of small EXL3 tiles (docs/numerics.md section 4): a 128-block of inputs that a warp has, four values a lane.
#pragma once

#include "kernels/contract/segments.h"
#include "kernels/device/warp_reduce.cuh"
#include "kernels/elementwise/norm_row.cuh"
#include "kernels/kv_rows/kv_codec.cuh"
#include "kernels/linear/exl3_epilogue.cuh"
#include "kernels/linear/row_codes.cuh"

namespace lockstep::kernels {

// Bytes of a code row's tile of 16 inputs in a small tile.
template <Exl3Form kForm>
inline constexpr int kCodeTileBytes = kForm == Exl3Form::kHalf ? 32 : 64;

__device__ inline void ScaleInput(const float4& scale, float (&t)[4]) {
  t[0] = contract::Mul(t[0], scale.x), t[1] = contract::Mul(t[1], scale.y), t[2] = contract::Mul(t[2], scale.z), t[3] = contract::Mul(t[3], scale.w);
}

// The largest of a warp's values that are not negative; a NaN only counts where there is nothing else.
__device__ inline float TopWarp(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const bool nan = x != x;
  const float top = __uint_as_float(MaxOfWarp(nan ? 0u : __float_as_uint(x)));
  return __all_sync(0xffffffffu, nan) ? x : top;
#else
  return MaxWarp(x);
#endif
}

// Family I: butterfly, then integer codes with one scale. Returns scale and sum of the block's codes.
__device__ inline ScaleSum IntegerCodes(float act_limit, float (&t)[4], int (&code)[4]) {
  ButterflyWarp(reinterpret_cast<float(&)[1][4]>(t));
  const float top = TopWarp(fmaxf(fmaxf(fabsf(t[0]), fabsf(t[1])), fmaxf(fabsf(t[2]), fabsf(t[3]))));
  const bool zero = top < 0x1p-100f;
  const float inverse = zero ? 0.0f : contract::Div(act_limit, top);
#pragma unroll
  for (int r = 0; r < 4; ++r) code[r] = __float2int_rn(fmaxf(fminf(contract::Mul(t[r], inverse), act_limit), -act_limit));
  return {zero ? 0.0f : contract::Div(top, act_limit), SumOfWarp(code[0] + code[1] + code[2] + code[3])};
}

// code = 256 * high + low, low in -128 .. 127.
__device__ inline void SplitCodes(const int (&code)[4], int (&high)[4], int (&low)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    high[r] = (code[r] + 128) >> 8;
    low[r] = code[r] - 256 * high[r];
  }
}

// Family H: t rounded to fp16, butterfly, fp16. True if a value is beyond fp16.
__device__ inline bool HalfCodes(float (&t)[4], __half (&code)[4]) {
  bool overflow = false;
#pragma unroll
  for (float& value : t) {
    const __half rounded = __float2half_rn(value);
    overflow = overflow || __hisinf(rounded);
    value = __half2float(rounded);
  }
  ButterflyWarp(reinterpret_cast<float(&)[1][4]>(t));
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    code[r] = __float2half_rn(t[r]);
    overflow = overflow || __hisinf(code[r]);
  }
  return overflow;
}

__device__ inline std::uint32_t PairBits(__half low, __half high) {
  return static_cast<std::uint32_t>(__half_as_ushort(low)) | (static_cast<std::uint32_t>(__half_as_ushort(high)) << 16);
}

// The lane's halves of a block of a small tile's code row: of tile lane/4 the pairs q = 2*(lane%2) and the next, of the lower or upper eight inputs.
__device__ inline void StoreSmall(std::byte* block, const __half (&code)[4]) {
  const int lane = threadIdx.x & 31;
  auto* at = reinterpret_cast<std::uint32_t*>(block) + lane / 4 * 8 + (lane & 1) * 4 + lane % 4 / 2;
  at[0] = PairBits(code[0], code[1]);
  at[2] = PairBits(code[2], code[3]);
}

// The same for byte codes, each repeated four times.
__device__ inline void StoreSmall(std::byte* block, const int (&code)[4]) {
  const int lane = threadIdx.x & 31;
  const auto repeated = [](int c) { return (static_cast<std::uint32_t>(c) & 0xffu) * 0x01010101u; };
  auto* at = reinterpret_cast<std::uint32_t*>(block) + lane / 4 * 16 + (lane & 1) * 8 + lane % 4 / 2 * 2;
  *reinterpret_cast<uint2*>(at) = make_uint2(repeated(code[0]), repeated(code[1]));
  *reinterpret_cast<uint2*>(at + 4) = make_uint2(repeated(code[2]), repeated(code[3]));
}

// Scaled inputs of a block, by a warp, to codes in their place in a small tile's code row; int16: high and low codes in rows `row_bytes` apart.
// Family I: scale and sum to `scale_sum`. True if a value is beyond fp16 (family H).
template <Exl3Form kForm>
__device__ bool PrepareSmallBlock(const Exl3Job& job, float (&t)[4], std::byte* block, std::int64_t row_bytes, ScaleSum* scale_sum) {
  if constexpr (kForm == Exl3Form::kHalf) {
    __half code[4];
    const bool overflow = HalfCodes(t, code);
    StoreSmall(block, code);
    return overflow;
  } else {
    int code[4];
    const ScaleSum result = IntegerCodes(static_cast<float>(job.act_limit), t, code);
    if ((threadIdx.x & 31) == 0) *scale_sum = result;
    if constexpr (kForm == Exl3Form::kInt16) {
      int high[4], low[4];
      SplitCodes(code, high, low);
      StoreSmall(block, high);
      StoreSmall(block + row_bytes, low);
    } else {
      StoreSmall(block, code);
    }
    return false;
  }
}

// Four values of a bf16 row from k on; zeros from `n` on. From the L2: a row may have come while the kernel before runs.
__device__ inline void LoadFour(const std::uint16_t* row, int k, int n, float (&v)[4]) {
  const std::uint16_t* from = row + k;
  if (k + 4 <= n && reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
    const uint2 bits = __ldcg(reinterpret_cast<const uint2*>(from));
    Unpack(bits.x, v), Unpack(bits.y, v + 2);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = k + i < n ? BF16Value(__ldcg(from + i)) : 0.0f;
}

// Four values, the lane's, of a row that a warp norms, from k on. It reads the whole row, and its values then stand near.
__device__ inline void NormFour(const Exl3Input& input, const std::uint16_t* row, int n, const float4& weight, float (&t)[4]) {
  using Row = NormRow<kExl3NormInputs / kLanesF>;
  const auto* own = reinterpret_cast<const uint2*>(row + Row::First());
  asm("" : "+l"(own));  // one address for all loads, which compilers would make anew for each
  __builtin_assume(__isGlobal(own));
  const float r = Row(own, n).Scale(input.norm_eps);
  const uint2 bits = ScaleFour(make_uint2(PackBF16(t[0], t[1]), PackBF16(t[2], t[3])), r, weight);
  Unpack(bits.x, t), Unpack(bits.y, t + 2);
}

}  // namespace lockstep::kernels
