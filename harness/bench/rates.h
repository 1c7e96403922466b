// What a device can do at most, measured: the limits that figures are printed beside.
#pragma once

#include "kernels/device/backend.h"

namespace lockstep::bench {

// 0: not measured on this device.
struct Rates {
  double read_bytes = 0;     // a second, from device memory
  double copy_in_bytes = 0;  // a second, from host memory that the backend allocates to the device
  double mma_flops = 0;      // a second, bf16 with fp32 sums, operands in registers or shared memory
  double mul1_weights = 0;   // a second: EXL3 K=3 states decoded from registers, nothing else
  double mcg_weights = 0;
};

// Takes about a second and, for a while, a gigabyte of the device. Devices of one backend are taken to be alike.
Rates MeasureRates(kernels::Backend& backend, bool cuda);

// The part that needs kernels of its own. cuda_bench.cu, or cuda_bench_absent.cc, which does nothing.
void MeasureCudaRates(kernels::Device& device, Rates* rates);

}  // namespace lockstep::bench
