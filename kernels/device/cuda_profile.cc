#include "kernels/device/cuda_profile.h"

namespace lockstep::kernels {

Profile ProfileOfCode(int code_arch, int device_arch) {
  if (code_arch < 75) return device_arch < 75 ? Profile::kSm70 : Profile::kSm70Jit;
  if (device_arch < 80) return Profile::kSm75;
  if (device_arch < 90) return Profile::kSm80;  // two steps of 8 whether the code has one instruction for them or two
  return code_arch < 80 ? Profile::kSm90K8 : Profile::kSm90;
}

}  // namespace lockstep::kernels
