// Functions of index_scores_simd.cc, once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/index_select/index_select.h"
#include "model/numerics_options.h"

#define LOCKSTEP_DECLARE_ROWS(isa)                                                                                     \
  namespace lockstep::kernels::isa {                                                                                   \
  /* Bytes of a prepared query and of scratch for one key. */                                                          \
  std::size_t IndexQueryBytes(const IndexSelectArgs&);                                                                 \
  /* Quantizes row t's query heads, as keys are, into `query`. */                                                      \
  void PrepareIndexQuery(const IndexSelectArgs&, std::int64_t t, std::byte* query);                                    \
  /* Scores of keys [begin, end) of row t into scores[0 .. end-begin). */                                              \
  void IndexScores(const IndexSelectArgs&, Profile profile, std::int64_t t, const std::byte* query, std::int64_t begin, \
                   std::int64_t end, float* scores);                                                                   \
  }
LOCKSTEP_DECLARE_ROWS(generic)
LOCKSTEP_DECLARE_ROWS(avx2)
LOCKSTEP_DECLARE_ROWS(avx512)
#undef LOCKSTEP_DECLARE_ROWS
