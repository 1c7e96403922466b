// What a person reads when CUDA fails. Needs the runtime's names only, no device.
#include "kernels/device/cuda_errors.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::kernels {
namespace {

void ExpectAdvice(cudaError_t error, const std::string& advice) {
  const std::string line = DescribeCudaError(error, "KV page");
  EXPECT_EQ(line.find("KV page: "), 0u) << line;
  EXPECT_NE(line.find(advice), line.npos) << line;
  EXPECT_EQ(line.find('\n'), line.npos) << line;
}

TEST(CudaErrors, SayWhatToDo) {
  ExpectAdvice(cudaErrorMemoryAllocation, "out of memory: end what else runs on it, lower --chunk");
  ExpectAdvice(cudaErrorNoDevice, "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu");
  ExpectAdvice(cudaErrorInsufficientDriver, "driver is missing or older than this program's CUDA runtime: install or update it");
  ExpectAdvice(cudaErrorNoKernelImageForDevice, "not built for this GPU's architecture: rebuild");
  ExpectAdvice(cudaErrorECCUncorrectable, "the device is lost: see nvidia-smi and the kernel log");
  ExpectAdvice(cudaErrorDevicesUnavailable, "holds the device exclusively");
  ExpectAdvice(cudaErrorIllegalAddress, "CUDA_LAUNCH_BLOCKING=1");
}

TEST(CudaErrors, TheOthersAreNamed) { ExpectAdvice(cudaErrorInvalidValue, "invalid argument"); }

}  // namespace
}  // namespace lockstep::kernels
