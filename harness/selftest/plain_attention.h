// Attention as one would write it from docs/numerics.md section 6, in profile fma and without a thought for
// speed, right or with one mistake.
#pragma once

#include "kernels/attention/attention.h"

namespace lockstep::harness {

enum class AttentionMistake {
  kNone,
  kNoRescale,           // what earlier blocks gave is not multiplied by Exp(M - M')
  kBlocksFromWindow,    // window blocks start at the window's first row and not at a multiple of 64
  kWeightsNotRounded,   // w_t enters the values' sum in fp32
  kDenominatorInOrder,  // fold64 replaced by a running sum
  kSinkInMaximum,       // the sink takes part in the running maximum
};

template <AttentionMistake mistake>
void PlainAttention(kernels::Stream& stream, const kernels::AttentionArgs& args);

}  // namespace lockstep::harness
