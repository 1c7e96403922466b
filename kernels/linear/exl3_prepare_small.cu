// The input side of EXL3 linears of three to eight rows: sign, butterfly and codes of every row, in the order that the products read.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_codes.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kMaxWarps = 16;  // of a row, whose time counts where rows are few

// The lane's sixteen codes, which are whole numbers, as a tile of a small tile's code row.
template <Exl3Form kForm>
__device__ void StoreSmallTile(std::byte* tile, const float (&code)[RowButterfly::kValues]) {
  auto* to = reinterpret_cast<uint4*>(tile);
  if constexpr (kForm == Exl3Form::kHalf) {
    const auto pair = [&](int i) { return PairBits(__float2half_rn(code[i]), __float2half_rn(code[i + 1])); };
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = make_uint4(pair(4 * i), pair(4 * i + 8), pair(4 * i + 2), pair(4 * i + 10));
  } else {
    const auto repeated = [&](int i) { return (static_cast<std::uint32_t>(static_cast<int>(code[i])) & 0xffu) * 0x01010101u; };
#pragma unroll
    for (int q = 0; q < 4; ++q) to[q] = make_uint4(repeated(2 * q), repeated(2 * q + 1), repeated(2 * q + 8), repeated(2 * q + 9));
  }
}

// A row, four 128-blocks a warp at a time, to its codes; family I: scales and sums. True if a value is beyond fp16 (family H).
template <Exl3Form kForm>
__device__ bool PrepareRow(const Exl3Call& call, const Exl3Job& job, int part, std::int64_t row, std::byte* codes, std::int64_t row_bytes, ScaleSum* scale_sums) {
  const RowButterfly butterfly;
  const RowInputs input(call, part, row);
  const int blocks = call.in / 128, lane = RowButterfly::LaneOfRow();
  bool overflow = false;
  for (int base = static_cast<int>(threadIdx.x) / 32 * RowButterfly::kRows; base < blocks; base += static_cast<int>(blockDim.x) / 32 * RowButterfly::kRows) {
    const int block = base + RowButterfly::RowOfWarp(), filled = min(block, blocks - 1);
    float v[RowButterfly::kValues];
    LoadScaledInput(job, input, filled * 128 + lane * RowButterfly::kValues, v);
    std::byte* tile = codes + (filled * 8 + lane) * kCodeTileBytes<kForm>;
    if constexpr (kForm == Exl3Form::kHalf) {
      overflow = HalfCodes(butterfly, v) || overflow;
      if (block < blocks) StoreSmallTile<kForm>(tile, v);
    } else {
      const ScaleSum result = IntegerCodes(butterfly, static_cast<float>(job.act_limit), v);
      if (block >= blocks) continue;
      if (lane == 0) scale_sums[block] = result;
      if constexpr (kForm == Exl3Form::kInt16) {
        float high[RowButterfly::kValues], low[RowButterfly::kValues];
        SplitCodes(v, high, low);
        StoreSmallTile<kForm>(tile, high);
        StoreSmallTile<kForm>(tile + row_bytes, low);
      } else {
        StoreSmallTile<kForm>(tile, v);
      }
    }
  }
  return overflow;
}

// Block (row of the tile, tile, part).
template <Exl3Form kForm>
__global__ void Exl3PrepareSmallKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  WaitForKernelsBefore();
  StartNextKernel();  // the product looks for its jobs and fetches weights before it waits for this kernel
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z), blocks = call.in / 128;
  RowTile tile;
  Exl3Job job;
  if (!call.tiles.Find(index, part, &tile, &job) || static_cast<int>(blockIdx.x) >= tile.rows) return;
  const std::int64_t row_bytes = std::int64_t{blocks} * 8 * kCodeTileBytes<kForm>, slot = call.tiles.SlotOf(index, part) + blockIdx.x;
  std::byte* codes = call.small.codes + call.terms() * slot * row_bytes;
  const bool overflow = PrepareRow<kForm>(call, job, part, tile.begin + blockIdx.x, codes, row_bytes, call.small.scale_sums + slot * blocks);
  if (overflow && call.overflow) *call.overflow = 1;
}

auto* KernelOf(Exl3Form form) {
  return form == Exl3Form::kHalf    ? Exl3PrepareSmallKernel<Exl3Form::kHalf>
         : form == Exl3Form::kInt16 ? Exl3PrepareSmallKernel<Exl3Form::kInt16>
                                    : Exl3PrepareSmallKernel<Exl3Form::kInt8>;
}

}  // namespace

void LaunchExl3PrepareSmall(const Exl3Call& call, CudaStream& stream) {
  const int units = static_cast<int>(Blocks(call.in / 128, RowButterfly::kRows)), threads = 32 * std::min(kMaxWarps, units);
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(static_cast<unsigned>(call.tiles.tile_rows), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    Launch(KernelOf(call.tiles.form), grid, static_cast<unsigned>(threads), 0, stream, call, begin);
  }
  CheckLaunch("exl3 prepare");
}

}  // namespace lockstep::kernels
