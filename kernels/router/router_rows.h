// Row function of router_simd.cc, once per instruction set.
#pragma once

#include "kernels/router/router.h"

#define LOCKSTEP_DECLARE_ROWS(isa)                                          \
  namespace lockstep::kernels::isa {                                        \
  void RouterRows(const RouterArgs&, std::int64_t begin, std::int64_t end); \
  }
LOCKSTEP_DECLARE_ROWS(generic)
LOCKSTEP_DECLARE_ROWS(avx2)
LOCKSTEP_DECLARE_ROWS(avx512)
#undef LOCKSTEP_DECLARE_ROWS
