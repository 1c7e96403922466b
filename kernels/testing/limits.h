// What the machine can do at best, measured when first asked for: the floors beside which benchmarks report.
#pragma once

#include "kernels/testing/implementations.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

// One thread that reads an array of about `bytes` again and again with the widest instructions of this CPU; on
// a device its memory, in both directions.
double BytesPerSecond(const Implementation& implementation, double bytes);

// fp32 multiply-adds of one thread from registers with the widest instructions of this CPU; of a device its
// dense bf16 tensor cores'.
double ProductsPerSecond(const Implementation& implementation);

// No thread can do this work faster: its bytes once at the rate of arrays of that size, its products from
// registers.
double FloorSeconds(const Implementation& implementation, const Work& work);

}  // namespace lockstep::kernels
