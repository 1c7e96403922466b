// The input side of EXL3 linears of many rows: sign, butterfly and codes (docs/numerics.md section 4) as exl3_large.cuh and exl3_tall.cuh read them.
// Many rows cost instructions, not latency: a warp takes a 128-block of four rows, eight lanes each.
#include <algorithm>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_relay.cuh"
#include "kernels/linear/row_codes.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kRows = RowButterfly::kRows, kValues = RowButterfly::kValues;
constexpr int kMaxWarps = 8;
static_assert(kRows == kPreparedRows);

__device__ std::uint32_t PairBits(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The lane's values of 128-block `block` as fp16, which they are: two chunks of the 64-input row of code row `slot`.
__device__ void StoreCodes(const Exl3Call& call, std::int64_t slot, int block, const float (&v)[kValues]) {
  const int lane = RowButterfly::LaneOfRow();
  const std::int64_t row = (2 * block + lane / 4) * call.terms() * call.tiles.large_slots() + slot;
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

// Rows first .. first + 3 of a tile, their 128-blocks over the warps; `slot`: of the first.
template <Exl3Form kForm, bool kSwiglu>
__device__ void PrepareRows(const Exl3Call& call, const Exl3Job& job, const RowTile& tile, int part, int first, std::int64_t slot) {
  extern __shared__ ScaleSum scale_sum[];
  const int own = first + RowButterfly::RowOfWarp(), blocks = call.in / 128;
  const bool filled = own < tile.rows;  // a row past the end is that at the end, not stored
  RowInputs input(call, part, tile.begin + min(own, tile.rows - 1));
  if (!kSwiglu) input.up = nullptr;
  const RowButterfly butterfly;
  const std::int64_t own_slot = slot + RowButterfly::RowOfWarp();
  bool overflow = false;
  for (int block = static_cast<int>(threadIdx.x) / 32; block < blocks; block += static_cast<int>(blockDim.x) / 32) {
    float v[kValues];
    LoadScaledInput(job, input, block * 128 + RowButterfly::LaneOfRow() * kValues, v);
    if constexpr (kForm == Exl3Form::kHalf) {
      overflow = HalfCodes(butterfly, v) || overflow;
      if (filled) StoreCodes(call, own_slot, block, v);
    } else {
      const ScaleSum result = IntegerCodes(butterfly, static_cast<float>(job.act_limit), v);
      if (RowButterfly::LaneOfRow() == 0) {
        scale_sum[RowButterfly::RowOfWarp() * blocks + block] = result;
        if (filled) call.scales[block * call.tiles.large_slots() + own_slot] = result.scale;
      }
      if (kForm == Exl3Form::kInt16) {
        float high[kValues], low[kValues];
        SplitCodes(v, high, low);
        if (filled) StoreCodes(call, 2 * own_slot, block, high), StoreCodes(call, 2 * own_slot + 1, block, low);
      } else if (filled) {
        StoreCodes(call, own_slot, block, v);
      }
    }
  }
  if (overflow && filled && call.overflow) *call.overflow = 1;
  if (kForm == Exl3Form::kHalf) return;
  __syncthreads();
  if (threadIdx.x < kRows * contract::kSegments) StoreCorrections(call, slot, scale_sum);
}

// Block (four rows of the tile, tile, part). The preparation of down in a relay waits for the outputs of its tile alone.
template <Exl3Form kForm, bool kSwiglu>
__global__ void __launch_bounds__(32 * kMaxWarps, kSwiglu ? 2 : 3) Exl3PrepareLargeKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  const bool takes = kSwiglu && TakesInputs(call.relay);
  BeginLarge(!takes);
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z), first = static_cast<int>(blockIdx.x) * kRows;
  if (blockIdx.x == 0 && index == 0 && part == 0) {
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < call.num_counts; i += static_cast<std::int32_t>(blockDim.x)) call.counts[i] = 0;
  }
  RowTile tile;
  Exl3Job job;
  if (call.tiles.Find(index, part, &tile, &job) && first < tile.rows) {
    if (takes) {
      if (threadIdx.x == 0) AwaitCount(call.relay.outputs + index, call.relay.awaited);
      __syncthreads();
    }
    PrepareRows<kForm, kSwiglu>(call, job, tile, part, first, call.tiles.LargeSlotOf(index, part) + first);
    if (takes) {
      __syncthreads();
      if (threadIdx.x == 0) CountUp(call.relay.inputs + index);
    }
  }
  EndLarge(!takes);
}

template <bool kSwiglu>
auto* KernelOf(Exl3Form form) {
  return form == Exl3Form::kHalf    ? Exl3PrepareLargeKernel<Exl3Form::kHalf, kSwiglu>
         : form == Exl3Form::kInt16 ? Exl3PrepareLargeKernel<Exl3Form::kInt16, kSwiglu>
                                    : Exl3PrepareLargeKernel<Exl3Form::kInt8, kSwiglu>;
}

}  // namespace

void LaunchExl3PrepareLarge(const Exl3Call& call, CudaStream& stream) {
  const auto blocks = static_cast<int>(call.in / 128);
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(Blocks(call.max_tile_rows, kRows), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    Launch(call.input.up ? KernelOf<true>(call.tiles.form) : KernelOf<false>(call.tiles.form), grid, static_cast<unsigned>(32 * std::min(kMaxWarps, blocks)),
           kRows * static_cast<std::size_t>(blocks) * sizeof(ScaleSum), stream, call, begin);
  }
  CheckLaunch("exl3 prepare");
}

}  // namespace lockstep::kernels
