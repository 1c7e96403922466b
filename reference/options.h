// How the reference computes.
#pragma once

#include <cstddef>

#include "model/numerics_options.h"
#include "model/step_trace.h"

namespace lockstep::reference {

struct Options {
  bool truth = false;  // double and libm; numerics.profile is then unused
  NumericsOptions numerics;
  std::size_t weight_cache_bytes = std::size_t{2} << 30;  // decoded matrices kept between uses
  StepTrace* trace = nullptr;                             // not owned, may be null
};

}  // namespace lockstep::reference
