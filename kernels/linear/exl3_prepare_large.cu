// The input side of EXL3 linears of many rows: sign, butterfly and codes (docs/numerics.md section 4) as exl3_large.cuh and exl3_tall.cuh read them.
// Many rows cost instructions, not latency: a warp takes a 128-block of four rows, eight lanes each.
#include <algorithm>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear/row_codes.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kRows = RowButterfly::kRows, kValues = RowButterfly::kValues;
constexpr int kMaxWarps = 8;

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
    float v[kValues];
    LoadScaledInput(call, job, part, input, k, v);
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
