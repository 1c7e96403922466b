#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

// Kinds of devices this program was built for: "cpu", and "cuda" in a CUDA build.
std::vector<std::string> CompiledDevices();

// "lockstep 0.1.0 (commit 0123456789ab), numerics 1, devices: cpu".
std::string VersionLine();

}  // namespace lockstep::cli
