#include "kernels/contract/mma_profile.h"

#include <string>

#include "model/error.h"

namespace lockstep {

std::string_view NameOf(MmaProfile profile) {
  switch (profile) {
    case MmaProfile::kSm90:
      return "sm90";
    case MmaProfile::kSm90K8:
      return "sm90k8";
    case MmaProfile::kSm80:
      return "sm80";
    case MmaProfile::kSm75:
      return "sm75";
    case MmaProfile::kSm70:
      return "sm70";
    case MmaProfile::kSm70Jit:
      return "sm70jit";
    case MmaProfile::kFma:
      return "fma";
  }
  return "unknown";
}

MmaProfile ParseMmaProfile(std::string_view name) {
  std::string expected;
  for (MmaProfile profile : kAllMmaProfiles) {
    if (name == NameOf(profile)) return profile;
    expected += (expected.empty() ? "" : ", ") + std::string(NameOf(profile));
  }
  throw InputError("profile: expected one of " + expected + ", got '" + std::string(name) + "'");
}

}  // namespace lockstep
