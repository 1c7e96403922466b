// exact_math.h on 16 lanes: Exp(F32x16) and the others, bit for bit what Exp(float) gives for each lane.
#pragma once

#include "kernels/contract/vec.h"
// After vec.h, which declares the operations on lanes.
#include "kernels/contract/exact_math.h"
