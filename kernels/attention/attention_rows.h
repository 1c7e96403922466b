// Functions of attention_simd.cc, once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

// Heads of one token that a work item computes together: its keys are unpacked once for all of them.
inline constexpr int kAttentionHeadGroup = 16;

}  // namespace lockstep::kernels

#define LOCKSTEP_DECLARE_ROWS(isa)                                                                                           \
  namespace lockstep::kernels::isa {                                                                                         \
  std::size_t AttentionScratchBytes(int head_dim);                                                                           \
  /* Heads [head_begin, head_end) of row t; at most kAttentionHeadGroup of them. */                                          \
  void AttendRow(const AttentionArgs&, Profile profile, std::int64_t t, int head_begin, int head_end, std::byte* scratch);    \
  }
LOCKSTEP_DECLARE_ROWS(generic)
LOCKSTEP_DECLARE_ROWS(avx2)
LOCKSTEP_DECLARE_ROWS(avx512)
#undef LOCKSTEP_DECLARE_ROWS
