// Neighbouring bf16 channels as fp32, loaded and stored together.
#pragma once

#include "kernels/device/dots.cuh"
#include "kernels/device/ldmatrix.cuh"

namespace lockstep::kernels {

// kWidth neighbouring channels, 16 bytes where the row length allows it.
template <int kWidth>
struct Channels {
  float value[kWidth];

  __device__ static Channels From(uint4 bits) {
    const float4 low = WidenFour(make_uint2(bits.x, bits.y)), high = WidenFour(make_uint2(bits.z, bits.w));
    Channels c;
    c.value[0] = low.x, c.value[1] = low.y, c.value[2] = low.z, c.value[3] = low.w;
    c.value[4] = high.x, c.value[5] = high.y, c.value[6] = high.z, c.value[7] = high.w;
    return c;
  }
  __device__ uint4 Bits() const { return make_uint4(PackBF16(value[0], value[1]), PackBF16(value[2], value[3]), PackBF16(value[4], value[5]), PackBF16(value[6], value[7])); }

  __device__ static Channels Load(const std::uint16_t* x) {
    Channels c;
    if constexpr (kWidth == 8) {
      c = From(*reinterpret_cast<const uint4*>(x));
    } else {
      c.value[0] = BF16Value(*x);
    }
    return c;
  }
  __device__ void Store(std::uint16_t* x) const {
    if constexpr (kWidth == 8) {
      *reinterpret_cast<uint4*>(x) = Bits();
    } else {
      *x = BF16Bits(value[0]);
    }
  }
};

}  // namespace lockstep::kernels
