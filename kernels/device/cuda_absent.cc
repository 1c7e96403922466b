// Linked when the program is built without CUDA.
#include "kernels/device/backend.h"
#include "model/error.h"

namespace lockstep::kernels {

bool BuiltWithCuda() { return false; }

Profile CudaProfile(int) { return Profile::kSm90; }

std::unique_ptr<Backend> MakeCudaBackend(const DeviceSpec&, Profile) {
  throw InputError("--device cuda: this program was built without CUDA; build the preset cuda-release, or use --device cpu");
}

}  // namespace lockstep::kernels
