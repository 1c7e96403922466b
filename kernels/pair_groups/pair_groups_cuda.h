// The CUDA kernel of pair_groups.h.
#pragma once

#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::kernels {

Kernel<PairGroupsArgs> CudaPairGroups();

}  // namespace lockstep::kernels
