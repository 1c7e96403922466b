#include "kernels/device/cuda_errors.h"

namespace lockstep::kernels {
namespace {

const char* Advice(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "the device is out of memory: end what else runs on it, lower --chunk, or leave experts on the host with mem= in --device";
    case cudaErrorNoDevice:
      return "no CUDA device is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu";
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "the NVIDIA driver is missing or older than this program's CUDA runtime: install or update it, or use --device cpu";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidKernelImage:
      return "this program was not built for this GPU's architecture: rebuild with it among the CUDA architectures, or use --device cpu";
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceAlreadyInUse:
      return "another process holds the device exclusively: end it, or name another device";
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
#endif
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return "the device is lost: see nvidia-smi and the kernel log (dmesg), reset it if need be, then start again";
    case cudaErrorSystemNotReady:
      return "the GPU's system services do not run: start nvidia-fabricmanager, then start again";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "a kernel failed earlier: run again with CUDA_LAUNCH_BLOCKING=1 and --graphs off to see which, and report it";
    default:
      return "not expected here: please report it with this line";
  }
}

}  // namespace

std::string DescribeCudaError(cudaError_t error, const char* what) {
  return std::string(what) + ": " + cudaGetErrorString(error) + "; " + Advice(error);
}

}  // namespace lockstep::kernels
