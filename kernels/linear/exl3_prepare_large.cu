// The input side of EXL3 linears of many rows: sign, butterfly and codes (docs/numerics.md section 4) as exl3_large.cuh reads them. Many rows cost
// instructions, not latency: a warp takes a 128-block of four rows, eight lanes each.
#include <algorithm>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/row_butterfly.cuh"
#include "kernels/linear/swiglu.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kRows = RowButterfly::kRows, kLanes = RowButterfly::kLanes, kValues = RowButterfly::kValues;
constexpr int kMaxWarps = 8;

__device__ void Unpack(std::uint32_t pair, float* v) { v[0] = __uint_as_float(pair << 16), v[1] = __uint_as_float(pair & 0xffff0000u); }

// bf16 values k .. k+15 of a row; zeros from `n` on.
__device__ void LoadValues(const std::uint16_t* row, std::int64_t k, std::int64_t n, float (&v)[kValues]) {
  const std::uint16_t* from = row + k;
  if (k + kValues <= n && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 bits = reinterpret_cast<const uint4*>(from)[i];
      Unpack(bits.x, v + 8 * i), Unpack(bits.y, v + 8 * i + 2), Unpack(bits.z, v + 8 * i + 4), Unpack(bits.w, v + 8 * i + 6);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = k + i < n ? BF16Value(from[i]) : 0.0f;
}

// Inputs k .. k+15 of a row of the call.
__device__ void LoadInput(const Exl3Call& call, int part, std::int64_t row, std::int64_t k, float (&v)[kValues]) {
  const Exl3Input& input = call.input;
  const std::int64_t at = (input.index ? input.index[row] : row) * call.parts[part].x_stride;
  LoadValues(call.parts[part].x + at, k, call.in_features, v);
  if (!input.up) return;
  float up[kValues];
  LoadValues(input.up + at, k, call.in_features, up);
  const float weight = input.weight ? input.weight[row] : 1.0f;
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = BF16Value(Swiglu(v[i], up[i], weight, input.limit));
}

__device__ std::uint32_t PairBits(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The lane's values of 128-block `block` as fp16, which they are: two chunks of the 64-input row of code row `slot`.
__device__ void StoreCodes(const Exl3Call& call, std::int64_t slot, std::int64_t block, const float (&v)[kValues]) {
  const int lane = RowButterfly::LaneOfRow();
  const std::int64_t row = (2 * block + lane / 4) * call.terms() * call.tiles.slots() + slot;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int chunk = (lane % 4 * 2 + i) ^ static_cast<int>(slot & 7);
    const float* c = v + 8 * i;
    *reinterpret_cast<uint4*>(call.codes + row * 128 + chunk * 16) =
        make_uint4(PairBits(c[0], c[1]), PairBits(c[2], c[3]), PairBits(c[4], c[5]), PairBits(c[6], c[7]));
  }
}

template <class Operation>
__device__ float ReduceRow(float value, const Operation& operation) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) value = operation(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

// Family H: rounded to fp16, butterfly, rounded again. True: a value is beyond fp16.
__device__ bool HalfCodes(const RowButterfly& butterfly, float (&v)[kValues]) {
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
__device__ float RoundToEven(float x) { return contract::Sub(contract::Add(x, 0x1.8p23f), 0x1.8p23f); }

// Family I: integer codes in place of the values, and their scale and sum, which all lanes of the row get. Codes and their sum are exact in fp32.
__device__ ScaleSum IntegerCodes(const RowButterfly& butterfly, float limit, float (&v)[kValues]) {
  butterfly.Transform(v);
  float top = fabsf(v[0]);  // NaN if all are: a NaN input must show
#pragma unroll
  for (float value : v) top = fmaxf(top, fabsf(value));
  top = ReduceRow(top, [](float a, float b) { return fmaxf(a, b); });
  const bool zero = top < 0x1p-100f;
  const float inverse = zero ? 0.0f : contract::Div(limit, top);
  float sum = 0.0f;
#pragma unroll
  for (float& value : v) {
    value = zero ? 0.0f : fmaxf(fminf(RoundToEven(contract::Mul(value, inverse)), limit), -limit);
    sum = contract::Add(sum, value);
  }
  sum = ReduceRow(sum, [](float a, float b) { return contract::Add(a, b); });
  return {zero ? 0.0f : contract::Div(top, limit), static_cast<std::int32_t>(sum)};
}

// int16 codes as 256 * high + low, low in -128 .. 127.
__device__ void SplitCodes(const float (&code)[kValues], float (&high)[kValues], float (&low)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int whole = static_cast<int>(code[i]), upper = (whole + 128) >> 8;
    high[i] = static_cast<float>(upper), low[i] = static_cast<float>(whole - 256 * upper);
  }
}

// z * 476/2^18 of each row, by four threads a row, a segment each. `blocks`: [kRows][in/128].
__device__ void StoreCorrections(const Exl3Call& call, std::int64_t slot, const ScaleSum* blocks) {
  const int segment = threadIdx.x % contract::kSegments, row = threadIdx.x / contract::kSegments;
  const contract::SegmentRange range = contract::SegmentOf(call.in, segment);
  const ScaleSum* of_row = blocks + row * (call.in / 128);
  float fold = 0.0f;
  for (std::int64_t b = range.begin / 128; b < range.end / 128; ++b) fold = contract::Fma(static_cast<float>(of_row[b].sum), of_row[b].scale, fold);
  const auto of = [&](int s) { return __shfl_sync(0xffffu, fold, s, contract::kSegments); };
  const float z = contract::FoldSegments(of(0), of(1), of(2), of(3));
  if (segment == 0) call.z[slot + row] = contract::Mul(z, 476.0f * 0x1p-18f);
}

// Block (four rows of the tile, tile, part): its 128-blocks over the warps.
template <Exl3Form kForm>
__global__ void __launch_bounds__(32 * kMaxWarps) Exl3PrepareLargeKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  extern __shared__ ScaleSum scale_sum[];
  WaitForKernelsBefore();
  StartNextKernel();
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z), first = static_cast<int>(blockIdx.x) * kRows, row = first + RowButterfly::RowOfWarp();
  RowTile tile;
  Exl3Job job;
  if (!call.tiles.Find(index, part, &tile, &job) || first >= tile.rows) return;
  const bool filled = row < tile.rows;  // a row past the end is that at the end, not stored
  const std::int64_t input = tile.begin + min(row, tile.rows - 1), slot = call.tiles.SlotOf(index, part) + row, blocks = call.in / 128;
  const RowButterfly butterfly;
  bool overflow = false;
  for (std::int64_t block = threadIdx.x / 32; block < blocks; block += blockDim.x / 32) {
    const std::int64_t k = block * 128 + RowButterfly::LaneOfRow() * kValues;
    float v[kValues], suh[kValues];
    LoadInput(call, part, input, k, v);
#pragma unroll
    for (int i = 0; i < kValues / 4; ++i) reinterpret_cast<float4*>(suh)[i] = reinterpret_cast<const float4*>(job.input_scale + k)[i];
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] = contract::Mul(v[i], suh[i]);
    if constexpr (kForm == Exl3Form::kHalf) {
      overflow = HalfCodes(butterfly, v) || overflow;
      if (filled) StoreCodes(call, slot, block, v);
    } else {
      const ScaleSum result = IntegerCodes(butterfly, static_cast<float>(job.act_limit), v);
      if (RowButterfly::LaneOfRow() == 0) {
        scale_sum[RowButterfly::RowOfWarp() * blocks + block] = result;
        if (filled) call.scales[block * call.tiles.slots() + slot] = result.scale;
      }
      if (kForm == Exl3Form::kInt16) {
        float high[kValues], low[kValues];
        SplitCodes(v, high, low);
        if (filled) StoreCodes(call, 2 * slot, block, high), StoreCodes(call, 2 * slot + 1, block, low);
      } else if (filled) {
        StoreCodes(call, slot, block, v);
      }
    }
  }
  if (overflow && filled && call.overflow) *call.overflow = 1;
  if (kForm == Exl3Form::kHalf) return;
  __syncthreads();
  if (threadIdx.x < kRows * contract::kSegments) StoreCorrections(call, slot - RowButterfly::RowOfWarp(), scale_sum);
}

auto* KernelOf(Exl3Form form) {
  return form == Exl3Form::kHalf    ? Exl3PrepareLargeKernel<Exl3Form::kHalf>
         : form == Exl3Form::kInt16 ? Exl3PrepareLargeKernel<Exl3Form::kInt16>
                                    : Exl3PrepareLargeKernel<Exl3Form::kInt8>;
}

}  // namespace

void LaunchExl3PrepareLarge(const Exl3Call& call, CudaStream& stream) {
  const auto blocks = static_cast<int>(call.in / 128);
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(Blocks(call.tiles.tile_rows, kRows), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    Launch(KernelOf(call.tiles.form), grid, static_cast<unsigned>(32 * std::min(kMaxWarps, blocks)), kRows * static_cast<std::size_t>(blocks) * sizeof(ScaleSum),
           stream, call, begin);
  }
  CheckLaunch("exl3 prepare");
}

}  // namespace lockstep::kernels
