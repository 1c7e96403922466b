// Turns a function template over the profile into the kernel of a run-time profile.
#pragma once

#include <string_view>

#include "kernels/device/stream.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

// `Run<profile>::Call` is a kernel function. `contracts` names the contract of each profile, in the order of the enumerators.
template <typename Args, template <Profile> class Run>
Kernel<Args> ProfileKernel(Profile profile, const std::string_view (&contracts)[7]) {
  const std::string_view contract = contracts[static_cast<int>(profile)];
  switch (profile) {
    case Profile::kSm90:
      return {&Run<Profile::kSm90>::Call, contract};
    case Profile::kSm90K8:
      return {&Run<Profile::kSm90K8>::Call, contract};
    case Profile::kSm80:
      return {&Run<Profile::kSm80>::Call, contract};
    case Profile::kSm75:
      return {&Run<Profile::kSm75>::Call, contract};
    case Profile::kSm70:
      return {&Run<Profile::kSm70>::Call, contract};
    case Profile::kSm70Jit:
      return {&Run<Profile::kSm70Jit>::Call, contract};
    case Profile::kFma:
      return {&Run<Profile::kFma>::Call, contract};
  }
  return {};
}

#define LOCKSTEP_PROFILE_CONTRACTS(prefix, suffix)                                                                      \
  {prefix "/H(sm90)" suffix,  prefix "/H(sm90k8)" suffix,  prefix "/H(sm80)" suffix, prefix "/H(sm75)" suffix,            \
   prefix "/H(sm70)" suffix, prefix "/H(sm70jit)" suffix, prefix "/H(fma)" suffix}

}  // namespace lockstep::kernels
