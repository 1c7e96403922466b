#include "fast/poison.h"

#include <algorithm>
#include <vector>

namespace lockstep::fast {

void FillWithNaN(kernels::Device& device, std::byte* data, std::size_t bytes) {
  // Outlives every copy from it.
  static const std::vector<std::byte> fill(std::size_t{1} << 20, std::byte{0xff});
  for (std::size_t done = 0; done < bytes; done += fill.size()) {
    device.CopyIn(device.compute(), data + done, fill.data(), std::min(fill.size(), bytes - done));
  }
}

}  // namespace lockstep::fast
