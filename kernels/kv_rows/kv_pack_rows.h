// Functions of kv_rows_simd.cc, once per instruction set.
#pragma once

#include "kernels/kv_rows/kv_rows.h"

#define LOCKSTEP_DECLARE_ROWS(isa)                                                                                       \
  namespace lockstep::kernels::isa {                                                                                     \
  void PackRowsRows(const PackRowsArgs&, std::int64_t begin, std::int64_t end);                                          \
  void UnpackRowsRows(const UnpackRowsArgs&, std::int64_t begin, std::int64_t end);                                      \
  /* One row of bf16 [width] to packed bytes, and back. */                                                               \
  void PackRow(const RowFormat& format, const std::uint16_t* x, std::byte* row);                                         \
  void UnpackRow(const RowFormat& format, const std::byte* row, std::uint16_t* y);                                       \
  /* The FP4 codes as their values and the scales as fp32 of a packed row: what index scores multiply. */                \
  void UnpackFp4(const RowFormat& format, const std::byte* row, float* values, float* scales);                           \
  }
LOCKSTEP_DECLARE_ROWS(generic)
LOCKSTEP_DECLARE_ROWS(avx2)
LOCKSTEP_DECLARE_ROWS(avx512)
#undef LOCKSTEP_DECLARE_ROWS
