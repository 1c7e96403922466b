// Kernels and copies that are wrong on purpose, each in one way that has happened to somebody.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/selftest/broken_backend.h"

namespace lockstep::harness {

struct KnownFault {
  std::string name;       // for test names
  std::string_view step;  // the first step whose values are wrong
  Fault fault;
};

// Faults that every model of both families shows.
std::vector<KnownFault> CommonFaults();
// Faults of what only compressed KV with an index, and models with several K segments, have.
std::vector<KnownFault> IndexFaults();
Fault SegmentFoldFault();

}  // namespace lockstep::harness
