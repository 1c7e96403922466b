// The input side of EXL3 linears of more than two rows: sign, butterfly and codes of every row, in the order that the products read.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_codes.cuh"

namespace lockstep::kernels {
namespace {

// Warps of a row: many where one row's time counts, few where the rows' number fills the device.
constexpr int kSmallWarpsARow = 16, kLargeWarpsARow = 4;

// The lane's four fp16 values of 128-block `block` of code row `slot` of a large tile.
__device__ void StoreLarge(const Exl3Call& call, std::int64_t slot, std::int64_t block, const __half (&v)[4]) {
  const int lane = threadIdx.x & 31;
  const std::int64_t k64 = 2 * block + lane / 16;
  const int chunk = (lane % 16 / 2) ^ static_cast<int>(slot & 7);
  const std::int64_t code_row = k64 * call.terms() * call.tiles.slots() + slot;
  *reinterpret_cast<uint2*>(call.codes + code_row * 128 + chunk * 16 + (lane & 1) * 8) = make_uint2(PairBits(v[0], v[1]), PairBits(v[2], v[3]));
}

__device__ void StoreLarge(const Exl3Call& call, std::int64_t slot, std::int64_t block, const int (&code)[4]) {
  const __half halves[4] = {__int2half_rn(code[0]), __int2half_rn(code[1]), __int2half_rn(code[2]), __int2half_rn(code[3])};
  StoreLarge(call, slot, block, halves);
}

// The same as PrepareSmallBlock for large tiles.
__device__ bool PrepareLargeBlock(const Exl3Call& call, const Exl3Job& job, const InputWords& words, std::int64_t slot, std::int64_t block,
                                  ScaleSum* scale_sum) {
  float t[4];
  ScaledInput(call.input, words, t);
  if (call.tiles.form == Exl3Form::kHalf) {
    __half code[4];
    const bool overflow = HalfCodes(t, code);
    StoreLarge(call, slot, block, code);
    return overflow;
  }
  int code[4], high[4], low[4];
  const ScaleSum result = IntegerCodes(static_cast<float>(job.act_limit), t, code);
  if ((threadIdx.x & 31) == 0) {
    call.scales[block * call.tiles.slots() + slot] = result.scale;
    *scale_sum = result;
  }
  if (call.terms() == 1) {
    StoreLarge(call, slot, block, code);
    return false;
  }
  SplitCodes(code, high, low);
  StoreLarge(call, 2 * slot, block, high);
  StoreLarge(call, 2 * slot + 1, block, low);
  return false;
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

// Where a block works, if it does.
struct PreparedRow {
  Exl3Job job;
  std::int64_t row, slot;
};

// Block (row of the tile, tile, part).
__device__ bool FindRow(const Exl3Call& call, std::int64_t first_tile, PreparedRow* found) {
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z);
  RowTile tile;
  if (!call.tiles.Find(index, part, &tile, &found->job) || static_cast<int>(blockIdx.x) >= tile.rows) return false;
  found->row = tile.begin + blockIdx.x;
  found->slot = call.tiles.SlotOf(index, part) + blockIdx.x;
  return true;
}

// The 128-blocks of a row over the warps.
template <Exl3Form kForm>
__global__ void Exl3PrepareSmallKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  WaitForKernelsBefore();
  StartNextKernel();  // the product looks for its jobs and fetches weights before it waits for this kernel
  PreparedRow at;
  if (!FindRow(call, first_tile, &at)) return;
  const std::int64_t blocks = call.in / 128, row_bytes = blocks * 8 * kCodeTileBytes<kForm>;
  std::byte* codes = call.codes + call.terms() * at.slot * row_bytes;
  const InputRow row = RowOf(call, static_cast<int>(blockIdx.z), at.row);
  bool overflow = false;
  for (std::int64_t block = threadIdx.x / 32; block < blocks; block += blockDim.x / 32) {
    const InputWords words = LoadInput(call, at.job, row, static_cast<int>(block));
    std::byte* to = codes + block * 8 * kCodeTileBytes<kForm>;
    overflow = PrepareSmallBlock<kForm>(call, at.job, words, to, row_bytes, call.scale_sums + at.slot * blocks + block) || overflow;
  }
  if (overflow && call.overflow) *call.overflow = 1;
}

__global__ void Exl3PrepareLargeKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  extern __shared__ ScaleSum scale_sum[];
  WaitForKernelsBefore();
  StartNextKernel();
  PreparedRow at;
  if (!FindRow(call, first_tile, &at)) return;
  const std::int64_t blocks = call.in / 128;
  const InputRow row = RowOf(call, static_cast<int>(blockIdx.z), at.row);
  bool overflow = false;
  for (std::int64_t block = threadIdx.x / 32; block < blocks; block += blockDim.x / 32) {
    const InputWords words = LoadInput(call, at.job, row, static_cast<int>(block));
    overflow = PrepareLargeBlock(call, at.job, words, at.slot, block, scale_sum + block) || overflow;
  }
  if (overflow && call.overflow) *call.overflow = 1;
  if (call.tiles.form == Exl3Form::kHalf) return;
  __syncthreads();
  if (threadIdx.x < 32) StoreCorrection(call, at.slot, scale_sum);
}

auto* PrepareKernel(bool large, Exl3Form form) {
  if (large) return Exl3PrepareLargeKernel;
  return form == Exl3Form::kHalf ? Exl3PrepareSmallKernel<Exl3Form::kHalf>
         : form == Exl3Form::kInt16 ? Exl3PrepareSmallKernel<Exl3Form::kInt16> : Exl3PrepareSmallKernel<Exl3Form::kInt8>;
}

}  // namespace

void LaunchExl3Prepare(const Exl3Call& call, bool large, CudaStream& stream) {
  const auto blocks = static_cast<int>(call.in / 128);
  const int threads = 32 * std::min(large ? kLargeWarpsARow : kSmallWarpsARow, blocks);
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(static_cast<unsigned>(call.tiles.tile_rows), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    const std::size_t shared = large ? static_cast<std::size_t>(blocks) * sizeof(ScaleSum) : 0;
    Launch(PrepareKernel(large, call.tiles.form), grid, static_cast<unsigned>(threads), shared, stream, call, begin);
  }
  CheckLaunch("exl3 prepare");
}

}  // namespace lockstep::kernels
