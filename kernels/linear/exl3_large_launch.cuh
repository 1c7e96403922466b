// Launches of EXL3 products of many rows, host side: a block for 128 outputs, a tile and a part; a kernel for each rate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/device/launch.cuh"
#include "kernels/linear/exl3_cuda.h"

namespace lockstep::kernels {

// `kernel`(call, first tile) over all tiles of `tile_rows` rows.
inline void LaunchOverTiles(void (*kernel)(Exl3Call, std::int64_t), int tile_rows, unsigned threads, std::size_t shared_bytes, const Exl3Call& call,
                            CudaStream& stream) {
  AllowShared(kernel, stream.device());
  constexpr std::int64_t kMaxGridY = 65535;
  const std::int64_t first = tile_rows == 128 ? 0 : call.tiles.count_128, end = tile_rows == 128 ? call.tiles.count_128 : call.tiles.count;
  for (std::int64_t begin = first; begin < end; begin += kMaxGridY) {
    const dim3 grid(static_cast<unsigned>(call.out / kExl3Columns), static_cast<unsigned>(std::min(kMaxGridY, end - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    Launch(kernel, grid, threads, shared_bytes, stream, call, begin);
  }
  CheckLaunch("exl3 product of many rows");
}

// launch(std::integral_constant<int, bits_x2>()).
template <class LaunchRate>
void LaunchOfRate(int bits_x2, const LaunchRate& launch) {
  switch (bits_x2) {
    case 2: return launch(std::integral_constant<int, 2>());
    case 3: return launch(std::integral_constant<int, 3>());
    case 4: return launch(std::integral_constant<int, 4>());
    case 5: return launch(std::integral_constant<int, 5>());
    case 6: return launch(std::integral_constant<int, 6>());
    case 7: return launch(std::integral_constant<int, 7>());
    case 8: return launch(std::integral_constant<int, 8>());
    case 10: return launch(std::integral_constant<int, 10>());
    case 12: return launch(std::integral_constant<int, 12>());
    case 14: return launch(std::integral_constant<int, 14>());
    default: return launch(std::integral_constant<int, 16>());
  }
}

}  // namespace lockstep::kernels
