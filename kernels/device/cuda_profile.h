// Which profile of family H (docs/numerics.md, section 2) CUDA code computes where it runs.
#pragma once

#include "model/numerics_options.h"

namespace lockstep::kernels {

// `code_arch`: the architecture that the running code was compiled for, 10 * major + minor (70 also for PTX that the driver translates);
// `device_arch`: the device's. The code decides how many products a step takes (16 from sm_80 on, 8 on sm_75, 4 on sm_70), the device what a
// step does with them.
Profile ProfileOfCode(int code_arch, int device_arch);

}  // namespace lockstep::kernels
