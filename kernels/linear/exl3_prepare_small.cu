// The input side of EXL3 linears of three to eight rows: sign, butterfly and codes of every row, in the order that the products read.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_codes.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kMaxWarps = 16;  // of a row, whose time counts where rows are few

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
  const RowTile row = {tile.job, 1, tile.begin + blockIdx.x};
  std::byte* codes = call.small.codes + call.terms() * slot * row_bytes;
  const bool overflow = PrepareSmallRows<kForm, true>(call, job, part, row, 0, blocks, codes, row_bytes, call.small.scale_sums + slot * blocks);
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
