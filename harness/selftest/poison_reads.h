// Kernels that read what they must not and make nothing of it: the value they read counts zero times, so that
// only the NaN bytes of EngineOptions::poison show them. Each stands for a masked load, a padded tile or a
// prefetch that goes too far.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "harness/selftest/broken_backend.h"

namespace lockstep::harness {

struct PoisonRead {
  std::string name;  // for test names
  Fault fault;
};

inline std::ostream& operator<<(std::ostream& out, const PoisonRead& read) { return out << read.name; }

std::vector<PoisonRead> PoisonReads();

}  // namespace lockstep::harness
