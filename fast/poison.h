// NaN bytes in device memory that nothing may read: a test's way to see that nothing does.
#pragma once

#include <cstddef>

#include "kernels/device/backend.h"

namespace lockstep::fast {

// Every float and bf16 in [data, data + bytes) becomes a NaN, and so do FP8 codes and scales; in the order of the compute stream.
void FillWithNaN(kernels::Device& device, std::byte* data, std::size_t bytes);

}  // namespace lockstep::fast
