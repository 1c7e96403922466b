// The CPU kernel of router.h for an instruction set. At most 1024 experts, 64 of them for a token.
#pragma once

#include "kernels/contract/cpu_isa.h"
#include "kernels/router/router.h"

namespace lockstep::kernels {

Kernel<RouterArgs> CpuRouter(Isa isa);
Kernel<RouteArgs> CpuRoute(Isa isa);

}  // namespace lockstep::kernels
