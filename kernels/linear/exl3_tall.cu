// Family I products of many rows of int16 codes.
#include "kernels/linear/exl3_tall.cuh"

namespace lockstep::kernels {

void LaunchExl3LargeInt16(const Exl3Call& call, int tile_rows, int bits_x2, CudaStream& stream) {
  if (tile_rows == 64) return LaunchTallOfRate<TallTile<64, 2>>(call, bits_x2, stream);
  LaunchTallOfRate<TallTile<64, 4>>(call, bits_x2, stream);
}

}  // namespace lockstep::kernels
