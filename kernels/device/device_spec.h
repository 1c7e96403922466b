// Device strings of the command line: "cpu", "cpu:4", "cpu:4,mem=64MiB,isa=avx2,threads=2", "cuda:0", "cuda:0,1".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/contract/cpu_isa.h"

namespace lockstep::kernels {

struct DeviceSpec {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  std::vector<int> indices = {0};      // CUDA ordinals, or 0..N-1 for pretend CPU devices
  std::size_t memory_limit = 0;        // bytes a device; 0: what the machine has
  Isa isa = Isa::kGeneric;             // CPU
  int threads = 0;                     // CPU threads a device; 0: the machine's cores divided among the devices

  int count() const { return static_cast<int>(indices.size()); }
};

// A size such as "64MiB", "2GiB" or "4096". False if `text` is none.
bool ParseBytes(std::string_view text, std::size_t* bytes);

// Throws InputError that names the part of `text` it does not understand.
DeviceSpec ParseDeviceSpec(std::string_view text);

}  // namespace lockstep::kernels
