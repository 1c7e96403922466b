// Functions of compressor_simd.cc, once per instruction set: entries [begin, end) of a step; rows [begin, end) of a store.
#pragma once

#include "kernels/compressor/compressor.h"

#define LOCKSTEP_DECLARE_ROWS(isa)                                                      \
  namespace lockstep::kernels::isa {                                                    \
  void CompressEntries(const CompressorArgs&, std::int64_t begin, std::int64_t end);    \
  void StoreHistoryRows(const StoreHistoryArgs&, std::int64_t begin, std::int64_t end); \
  }
LOCKSTEP_DECLARE_ROWS(generic)
LOCKSTEP_DECLARE_ROWS(avx2)
LOCKSTEP_DECLARE_ROWS(avx512)
#undef LOCKSTEP_DECLARE_ROWS
