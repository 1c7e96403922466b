// Scratch slots of the CUDA linears (CudaStream::Scratch).
#pragma once

namespace lockstep::kernels {

enum LinearSlot { kLinearJobs = 1, kLinearTiles, kLinearCodes, kLinearScales, kLinearDownCodes = 7, kLinearDownScales, kLinearCounts };

}  // namespace lockstep::kernels
