// The clamped SwiGLU of an expert, one element, on the device. Contract: docs/numerics.md section 6, Expert.
#pragma once

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

// bf16 bits of [weight *] silu(min(gate, limit)) * clamp(up, -limit, limit). `limit` 0: no bounds; `weight` null: none.
__device__ inline std::uint16_t Swiglu(float gate, float up, const float* weight, float limit) {
  if (limit > 0.0f) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  float value = contract::Mul(contract::Silu(gate), up);
  if (weight) value = contract::Mul(*weight, value);
  return BF16Bits(value);
}

}  // namespace lockstep::kernels
