// What each build of the *_simd.cc files exports. LinearStepsFor chooses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

struct LinearWork;

#define LOCKSTEP_DECLARE_LINEAR(isa)                                                                       \
  namespace isa {                                                                                          \
  bool PrepareInputs(const LinearWork& work, const std::uint16_t* x, std::int64_t row, std::int64_t begin, \
                     std::int64_t end);                                                                    \
  void FinishOutputs(const LinearWork& work, std::int64_t row, std::int64_t block, std::uint16_t* y_bf16,  \
                     float* y_fp32);                                                                       \
  void IntegerStrip(const LinearWork& work, std::int64_t strip, std::byte* scratch);                       \
  void PanelStrip(const LinearWork& work, std::int64_t strip, std::byte* scratch);                         \
  void FloatStrip(const LinearWork& work, std::int64_t strip, std::byte* scratch);                         \
  }
LOCKSTEP_DECLARE_LINEAR(generic)
LOCKSTEP_DECLARE_LINEAR(avx2)
LOCKSTEP_DECLARE_LINEAR(avx512)
#undef LOCKSTEP_DECLARE_LINEAR

}  // namespace lockstep::kernels
