// Row functions of elementwise_simd.cc, once per instruction set: rows [begin, end) of the step.
#pragma once

#include "kernels/elementwise/elementwise.h"

#define LOCKSTEP_DECLARE_ROWS(isa)                                                    \
  namespace lockstep::kernels::isa {                                                  \
  void EmbedRows(const EmbedArgs&, std::int64_t begin, std::int64_t end);             \
  void RmsNormRows(const RmsNormArgs&, std::int64_t begin, std::int64_t end);         \
  void RopeRows(const RopeArgs&, std::int64_t begin, std::int64_t end);               \
  void HcMixRows(const HcMixArgs&, std::int64_t begin, std::int64_t end);             \
  void SinkhornRows(const SinkhornArgs&, std::int64_t begin, std::int64_t end);       \
  void HcCollapseNormRows(const HcCollapseNormArgs&, std::int64_t begin, std::int64_t end); \
  void HcExpandRows(const HcExpandArgs&, std::int64_t begin, std::int64_t end);       \
  void CombineRows(const CombineArgs&, std::int64_t begin, std::int64_t end);         \
  void EngramGateRows(const EngramGateArgs&, std::int64_t begin, std::int64_t end);   \
  }
LOCKSTEP_DECLARE_ROWS(generic)
LOCKSTEP_DECLARE_ROWS(avx2)
LOCKSTEP_DECLARE_ROWS(avx512)
#undef LOCKSTEP_DECLARE_ROWS
