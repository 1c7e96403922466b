// CUDA's errors as one line that says what a person can do.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace lockstep::kernels {

// "WHAT: the runtime's words; what to do". `what` says what was tried.
std::string DescribeCudaError(cudaError_t error, const char* what);

}  // namespace lockstep::kernels
