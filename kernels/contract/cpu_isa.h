// Which of the three builds of a SIMD source this machine can run, and which one to use.
#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

// kAvx2 means AVX2, FMA and F16C; kAvx512 those and AVX-512 F, BW, DQ, VL, VNNI and VBMI. Each includes those
// before it.
enum class Isa { kGeneric, kAvx2, kAvx512 };

// "generic", "avx2" or "avx512".
std::string_view NameOf(Isa isa);

// The inverse of NameOf. Throws InputError for another name.
Isa ParseIsa(std::string_view name);

// Whether this processor and its operating system can run code built for `isa`.
bool CpuSupports(Isa isa);

// The best one this machine can run.
Isa BestIsa();

// All that this machine can run, kGeneric first. Tests run once for each.
std::vector<Isa> SupportedIsas();

// The one that a user's mask asks for: `name` as for ParseIsa, or "" for the best. Throws InputError if this
// machine cannot run it: a mask is never silently replaced.
Isa SelectIsa(std::string_view name);

// The build of a function for `isa`.
template <class Function>
Function* ForIsa(Isa isa, Function* generic, Function* avx2, Function* avx512) {
  return isa == Isa::kAvx512 ? avx512 : isa == Isa::kAvx2 ? avx2 : generic;
}

}  // namespace lockstep
