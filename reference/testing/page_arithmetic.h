// docs/numerics.md sections 2 to 4 once more, slowly and by other means than reference/: blocks in double
// arithmetic, whose integers up to 2^53 are exact, instead of shifts. What reference/ computes must have these
// bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "model/numerics_options.h"
#include "reference/mma_block.h"

namespace lockstep::reference::page {

using Floats = std::span<const float>;

// Largest fp32 value not beyond x, toward zero; infinity from 2^128 on.
float RoundTowardZero(double x);

// Family F.
float DotF(Floats a, Floats b);

// Products a block and fraction bits of a profile with MMA blocks; F is 0 for sm70jit, which has none.
struct BlockRule {
  int products;
  int fraction_bits;
};
BlockRule RuleOf(Profile profile);

// Family H: H(c; a, b) with an MMA profile, and H(0; a, b) with any.
float Chain(Profile profile, float c, Floats a, Floats b, OperandFormat format);
float DotH(Profile profile, Floats a, Floats b, OperandFormat format);

// Bounds of the four K segments and the fold of their sums.
float FoldSegments(std::int64_t k_length,
                   const std::function<float(std::int64_t begin, std::int64_t end)>& sum);

// H linear dot.
float DotHS(Profile profile, Floats a, Floats b, OperandFormat format);

// Family I on one output: t, the transformed input; byte_sums b of the output's weights, 0..1020; limit Q.
float DotI(Floats t, std::span<const int> byte_sums, int limit);

}  // namespace lockstep::reference::page
