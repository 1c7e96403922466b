#include "kernels/contract/cpu_isa.h"

#include <cpuid.h>

#include <string>

#include "model/error.h"

namespace lockstep {
namespace {

// __builtin_cpu_supports has no name for F16C in every compiler. It needs the same operating system support as
// AVX.
bool CpuHasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool CpuHasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && CpuHasF16c(); }

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}

}  // namespace

std::string_view NameOf(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa ParseIsa(std::string_view name) {
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (name == NameOf(isa)) return isa;
  }
  throw InputError("isa: expected generic, avx2 or avx512, got '" + std::string(name) + "'");
}

bool CpuSupports(Isa isa) {
  static const bool has_avx2 = CpuHasAvx2();
  static const bool has_avx512 = CpuHasAvx512();
  return isa == Isa::kAvx512 ? has_avx512 : isa == Isa::kAvx2 ? has_avx2 : true;
}

Isa BestIsa() { return SupportedIsas().back(); }

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> supported;
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (CpuSupports(isa)) supported.push_back(isa);
  }
  return supported;
}

Isa SelectIsa(std::string_view name) {
  if (name.empty()) return BestIsa();
  const Isa isa = ParseIsa(name);
  if (!CpuSupports(isa)) {
    throw InputError("isa: this processor cannot run '" + std::string(name) + "', expected " +
                     std::string(NameOf(BestIsa())) + " or less");
  }
  return isa;
}

}  // namespace lockstep
