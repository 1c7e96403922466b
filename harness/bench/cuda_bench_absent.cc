// Linked when the program is built without CUDA.
#include "harness/bench/op_profile.h"
#include "harness/bench/rates.h"
#include "model/error.h"

namespace lockstep::bench {

std::unique_ptr<OpClock> MakeCudaClock() { throw InputError("--device cuda: this program was built without CUDA"); }

void MeasureCudaRates(kernels::Device&, Rates*) {}

}  // namespace lockstep::bench
