// The input side of EXL3 linears of three to eight rows: sign, butterfly and codes of every row, in the order that the products read.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_codes.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kWarpsARow = 16;  // few rows: the time of one counts

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
  std::byte* codes = call.small.codes + call.terms() * at.slot * row_bytes;
  const InputRow row = RowOf(call, static_cast<int>(blockIdx.z), at.row);
  bool overflow = false;
  for (std::int64_t block = threadIdx.x / 32; block < blocks; block += blockDim.x / 32) {
    const InputWords words = LoadInput(call, at.job, row, static_cast<int>(block));
    float t[4];
    ScaledInput(call.input, words, t);
    std::byte* to = codes + block * 8 * kCodeTileBytes<kForm>;
    overflow = PrepareSmallBlock<kForm>(at.job, t, to, row_bytes, call.small.scale_sums + at.slot * blocks + block) || overflow;
  }
  if (overflow && call.overflow) *call.overflow = 1;
}

auto* KernelOf(Exl3Form form) {
  return form == Exl3Form::kHalf    ? Exl3PrepareSmallKernel<Exl3Form::kHalf>
         : form == Exl3Form::kInt16 ? Exl3PrepareSmallKernel<Exl3Form::kInt16>
                                    : Exl3PrepareSmallKernel<Exl3Form::kInt8>;
}

}  // namespace

void LaunchExl3PrepareSmall(const Exl3Call& call, CudaStream& stream) {
  const auto blocks = static_cast<int>(call.in / 128);
  const int threads = 32 * std::min(kWarpsARow, blocks);
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(static_cast<unsigned>(call.tiles.tile_rows), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    Launch(KernelOf(call.tiles.form), grid, static_cast<unsigned>(threads), 0, stream, call, begin);
  }
  CheckLaunch("exl3 prepare");
}

}  // namespace lockstep::kernels
