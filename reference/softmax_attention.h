// The core of attention for one head: keys in blocks of 64 slots, one running softmax. docs/numerics.md section 6, Attention.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/arithmetic.h"
#include "reference/mma_block.h"

namespace lockstep::reference {

inline constexpr std::int64_t kAttentionBlock = 64;

// Keys (= values) of one token's list. Slot s of block b is rows[b * 64 + s], null where the slot is empty.
template <typename Real>
struct KeyList {
  std::vector<const Real*> rows;  // whole blocks of 64
};

// out[H][D] for all heads of one token: q[H][D], sink[H] logits, softmax scale 1/sqrt(D). Throws InputError if a score overflows.
void AttendHeads(Profile profile, const KeyList<float>& keys, const float* q_HD, const std::vector<float>& sink_H, std::int64_t head_dim,
                 float* out_HD);
void AttendHeads(Profile profile, const KeyList<double>& keys, const double* q_HD, const std::vector<float>& sink_H,
                 std::int64_t head_dim, double* out_HD);

}  // namespace lockstep::reference
