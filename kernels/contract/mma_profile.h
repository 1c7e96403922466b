// The hardware profiles of contract family H, by the names that the command line and the goldens use.
#pragma once

#include <string_view>

namespace lockstep {

enum class MmaProfile { kSm90, kSm90K8, kSm80, kSm75, kSm70, kSm70Jit, kFma };

inline constexpr MmaProfile kAllMmaProfiles[] = {MmaProfile::kSm90, MmaProfile::kSm90K8, MmaProfile::kSm80,
                                                 MmaProfile::kSm75, MmaProfile::kSm70,   MmaProfile::kSm70Jit,
                                                 MmaProfile::kFma};

// What the operands of a block are.
enum class MmaFormat { kF16, kBF16 };

// "sm90", "sm90k8", "sm80", "sm75", "sm70", "sm70jit" or "fma".
std::string_view NameOf(MmaProfile profile);

// The inverse of NameOf. Throws InputError for another name.
MmaProfile ParseMmaProfile(std::string_view name);

}  // namespace lockstep
