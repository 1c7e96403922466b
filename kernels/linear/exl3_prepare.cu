// The input side of EXL3 linears: sign, butterfly and codes of every row (docs/numerics.md section 4), in the order that the products read.
#include <algorithm>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/kv_rows/kv_codec.cuh"
#include "kernels/linear/exl3_epilogue.cuh"
#include "kernels/linear/swiglu.cuh"

namespace lockstep::kernels {
namespace {

// Warps of a row: many where one row's time counts, few where the rows' number fills the device.
constexpr int kSmallWarpsARow = 16, kLargeWarpsARow = 4;

// Four bf16 values from k on; zeros from `n` on.
__device__ void LoadFour(const std::uint16_t* row, std::int64_t k, std::int64_t n, float (&v)[4]) {
  if (k + 4 <= n && reinterpret_cast<std::uintptr_t>(row + k) % 8 == 0) {
    const uint2 bits = *reinterpret_cast<const uint2*>(row + k);
    v[0] = __uint_as_float(bits.x << 16), v[1] = __uint_as_float(bits.x & 0xffff0000u);
    v[2] = __uint_as_float(bits.y << 16), v[3] = __uint_as_float(bits.y & 0xffff0000u);
    return;
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) v[r] = k + r < n ? BF16Value(row[k + r]) : 0.0f;
}

// Inputs k .. k+3 of a row.
__device__ void LoadInput(const Exl3Call& call, std::int64_t row, std::int64_t k, float (&v)[4]) {
  const Exl3Input& input = call.input;
  const std::int64_t at = (input.index ? input.index[row] : row) * input.stride;
  LoadFour(input.x + at, k, call.in_features, v);
  if (!input.up) return;
  float up[4];
  LoadFour(input.up + at, k, call.in_features, up);
  const float* weight = input.weight ? input.weight + row : nullptr;
#pragma unroll
  for (int r = 0; r < 4; ++r) v[r] = BF16Value(Swiglu(v[r], up[r], weight, input.limit));
}

__device__ std::uint32_t PairBits(__half low, __half high) {
  return static_cast<std::uint32_t>(__half_as_ushort(low)) | (static_cast<std::uint32_t>(__half_as_ushort(high)) << 16);
}

// The lane's four fp16 values, inputs 4*lane.. of 128-block `block` of code row `slot`.
template <bool kLarge>
__device__ void StoreHalves(const Exl3Call& call, std::int64_t code_slots, std::int64_t slot, std::int64_t block, const __half (&v)[4]) {
  const int lane = threadIdx.x & 31;
  const std::uint32_t first = PairBits(v[0], v[1]), second = PairBits(v[2], v[3]);
  if constexpr (kLarge) {
    const std::int64_t k64 = 2 * block + lane / 16;
    const int chunk = (lane % 16 / 2) ^ static_cast<int>(slot & 7);
    *reinterpret_cast<uint2*>(call.codes + (k64 * code_slots + slot) * 128 + chunk * 16 + (lane & 1) * 8) = make_uint2(first, second);
  } else {
    // Tile lane/4 of the block; pairs q = 2*(lane%2) and the next, of the lower or upper eight inputs.
    auto* tile = reinterpret_cast<std::uint32_t*>(call.codes) + (slot * (call.in / 16) + block * 8 + lane / 4) * 8;
    const int at = (lane & 1) * 4 + (lane % 4) / 2;
    tile[at] = first;
    tile[at + 2] = second;
  }
}

// The same for byte codes, each repeated four times.
__device__ void StoreBytes(const Exl3Call& call, std::int64_t slot, std::int64_t block, const int (&code)[4]) {
  const int lane = threadIdx.x & 31;
  const auto repeated = [](int c) { return (static_cast<std::uint32_t>(c) & 0xffu) * 0x01010101u; };
  auto* tile = reinterpret_cast<std::uint32_t*>(call.codes) + (slot * (call.in / 16) + block * 8 + lane / 4) * 16;
  const int at = (lane & 1) * 8 + (lane % 4) / 2 * 2;
  *reinterpret_cast<uint2*>(tile + at) = make_uint2(repeated(code[0]), repeated(code[1]));
  *reinterpret_cast<uint2*>(tile + at + 4) = make_uint2(repeated(code[2]), repeated(code[3]));
}

// t * suh rounded to fp16, butterfly, fp16. Family H.
template <bool kLarge>
__device__ bool PrepareHalfBlock(const Exl3Call& call, std::int64_t slot, std::int64_t block, float (&t)[4]) {
  bool overflow = false;
#pragma unroll
  for (float& value : t) {
    const __half rounded = __float2half_rn(value);
    overflow = overflow || __hisinf(rounded);
    value = __half2float(rounded);
  }
  ButterflyWarp(t);
  __half out[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    out[r] = __float2half_rn(t[r]);
    overflow = overflow || __hisinf(out[r]);
  }
  StoreHalves<kLarge>(call, call.tiles.slots(), slot, block, out);
  return overflow;
}

// Butterfly, then integer codes with one scale. Family I. Writes the block's scale and code sum, and returns them.
template <bool kLarge>
__device__ ScaleSum PrepareIntegerBlock(const Exl3Call& call, std::int64_t slot, std::int64_t block, float act_limit, float (&t)[4]) {
  ButterflyWarp(t);
  const float top = MaxWarp(fmaxf(fmaxf(fabsf(t[0]), fabsf(t[1])), fmaxf(fabsf(t[2]), fabsf(t[3]))));
  const bool zero = top < 0x1p-100f, two_terms = call.terms() == 2;
  const float inverse = zero ? 0.0f : contract::Div(act_limit, top);
  int code[4], low[4], sum = 0;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    code[r] = zero ? 0 : static_cast<int>(fmaxf(fminf(rintf(contract::Mul(t[r], inverse)), act_limit), -act_limit));
    sum += code[r];
    const int high = (code[r] + 128) >> 8;  // code = 256 * high + low, low in -128 .. 127
    low[r] = code[r] - 256 * high;
    if (two_terms) code[r] = high;
  }
  const auto store = [&](std::int64_t code_slot, const int (&codes)[4]) {
    if constexpr (kLarge) {
      const __half halves[4] = {__int2half_rn(codes[0]), __int2half_rn(codes[1]), __int2half_rn(codes[2]), __int2half_rn(codes[3])};
      StoreHalves<true>(call, call.terms() * call.tiles.slots(), code_slot, block, halves);
    } else {
      StoreBytes(call, code_slot, block, codes);
    }
  };
  if (two_terms) {
    store(2 * slot, code);
    store(2 * slot + 1, low);
  } else {
    store(slot, code);
  }
  for (int stride = 16; stride > 0; stride /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, stride);
  const ScaleSum result = {zero ? 0.0f : contract::Div(top, act_limit), sum};
  if ((threadIdx.x & 31) == 0) {
    if constexpr (kLarge) call.scales[block * call.tiles.slots() + slot] = result.scale;
    else call.scale_sums[slot * (call.in / 128) + block] = result;
  }
  return result;
}

// z * 476/2^18 of a row, by the first four lanes of a warp, a segment each.
__device__ void StoreCorrection(const Exl3Call& call, std::int64_t slot, const ScaleSum* blocks) {
  const int lane = threadIdx.x & 31;
  float fold = 0.0f;
  if (lane < contract::kSegments) {
    const contract::SegmentRange range = contract::SegmentOf(call.in, lane);
    for (std::int64_t b = range.begin / 128; b < range.end / 128; ++b) fold = contract::Fma(static_cast<float>(blocks[b].sum), blocks[b].scale, fold);
  }
  const auto of = [&](int segment) { return __shfl_sync(0xffffffffu, fold, segment); };
  const float z = contract::FoldSegments(of(0), of(1), of(2), of(3));
  if (lane == 0) call.z[slot] = contract::Mul(z, 476.0f * 0x1p-18f);
}

// Block (row of the tile, tile, part): a row, its 128-blocks over the warps.
template <bool kLarge>
__global__ void Exl3PrepareKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  extern __shared__ ScaleSum scale_sum[];
  WaitForKernelsBefore();
  StartNextKernel();  // the product looks for its jobs and fetches weights before it waits for this kernel
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z);
  RowTile tile;
  Exl3Job job;
  if (!call.tiles.Find(index, part, &tile, &job) || static_cast<int>(blockIdx.x) >= tile.rows) return;
  const std::int64_t row = tile.begin + blockIdx.x, slot = call.tiles.SlotOf(index, part) + blockIdx.x, blocks = call.in / 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const bool integer = call.tiles.form != Exl3Form::kHalf;
  bool overflow = false;
  for (std::int64_t block = warp; block < blocks; block += warps) {
    float t[4];
    LoadInput(call, row, block * 128 + 4 * lane, t);
    const float4 suh = reinterpret_cast<const float4*>(job.input_scale)[block * 32 + lane];
    t[0] = contract::Mul(t[0], suh.x), t[1] = contract::Mul(t[1], suh.y), t[2] = contract::Mul(t[2], suh.z), t[3] = contract::Mul(t[3], suh.w);
    if (integer) {
      const ScaleSum result = PrepareIntegerBlock<kLarge>(call, slot, block, static_cast<float>(job.act_limit), t);
      if (lane == 0) scale_sum[block] = result;
    } else {
      overflow = PrepareHalfBlock<kLarge>(call, slot, block, t) || overflow;
    }
  }
  if (overflow && call.overflow) *call.overflow = 1;
  if (!integer) return;
  __syncthreads();
  if (warp == 0) StoreCorrection(call, slot, scale_sum);
}

}  // namespace

void LaunchExl3Prepare(const Exl3Call& call, bool large, CudaStream& stream) {
  const auto blocks = static_cast<int>(call.in / 128);
  const int threads = 32 * std::min(large ? kLargeWarpsARow : kSmallWarpsARow, blocks);
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(static_cast<unsigned>(call.tiles.tile_rows), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    const std::size_t shared = static_cast<std::size_t>(blocks) * sizeof(ScaleSum);
    Launch(large ? Exl3PrepareKernel<true> : Exl3PrepareKernel<false>, grid, static_cast<unsigned>(threads), shared, stream, call, begin);
  }
  CheckLaunch("exl3 prepare");
}

}  // namespace lockstep::kernels
