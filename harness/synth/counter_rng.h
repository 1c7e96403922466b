// The random numbers that synthetic models are made of.
#pragma once

#include "kernels/random_exl3/counter_rng.h"

namespace lockstep::synth {

using kernels::CounterRng;
using kernels::kNormalDeviation;
using kernels::MixBits;

}  // namespace lockstep::synth
