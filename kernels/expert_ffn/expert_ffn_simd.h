// What each build of expert_ffn_simd.cc exports.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

#define LOCKSTEP_DECLARE_SWIGLU(isa)                                                                           \
  namespace isa {                                                                                              \
  void SwiGlu(std::uint16_t* gate, const std::uint16_t* up, std::int64_t n, float limit, const float* weight); \
  }
// In place: gate[n] = bf16([*weight *] silu(min(gate, limit)) * clamp(up, -limit, limit)). `limit` 0: no
// bounds; `weight` null: none.
LOCKSTEP_DECLARE_SWIGLU(generic)
LOCKSTEP_DECLARE_SWIGLU(avx2)
LOCKSTEP_DECLARE_SWIGLU(avx512)
#undef LOCKSTEP_DECLARE_SWIGLU

}  // namespace lockstep::kernels
