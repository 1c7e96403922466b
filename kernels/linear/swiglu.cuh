// The clamped SwiGLU of an expert, one element, on the device. Contract: docs/numerics.md section 6, Expert.
#pragma once

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

// bf16 bits of weight * silu(min(gate, limit)) * clamp(up, -limit, limit). `limit` 0: no bounds; `weight` 1: as if none.
__device__ inline std::uint16_t Swiglu(float gate, float up, float weight, float limit) {
  if (limit > 0.0f) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  return BF16Bits(contract::Mul(weight, contract::Mul(contract::Silu(gate), up)));
}

}  // namespace lockstep::kernels
