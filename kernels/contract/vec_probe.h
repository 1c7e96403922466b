// Every operation of vec.h as a function on arrays of 16 words, for vec_test.cc.
#pragma once

#include <cstdint>

namespace lockstep {

// Named as in vec.h. F and I stand for the lane type where both exist.
enum class VecOp {
  kBroadcastF,
  kBroadcastI,
  kLoadN,
  kStoreN,
  kLoadI8,
  kLoadU8,
  kLoadI16,
  kLoadU16,
  kStoreI8,
  kStoreI16,
  kLoadBF16,
  kLoadF16,
  kStoreBF16,
  kStoreF16,
  kLoadBF16N,
  kLoadF16N,
  kStoreBF16N,
  kStoreF16N,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kSqrt,
  kFma,
  kMulThenAdd,
  kMinF,
  kMaxF,
  kNegate,
  kAbs,
  kLessF,
  kLessEqualF,
  kEqualF,
  kIsNan,
  kSelectF,
  kRoundToBF16,
  kRoundToF16,
  kRoundToInt,
  kTruncateToInt,
  kTruncateUnsignedToFloat,
  kAddPairs16,
  kMaxPairs16,
  kToFloat,
  kFold,
  kAddI,
  kSubI,
  kMulI,
  kAndI,
  kOrI,
  kXorI,
  kShiftLeftBy5,
  kShiftRightBy5,
  kShiftLeft,
  kShiftRight,
  kShiftRightLogical,
  kMinI,
  kMaxI,
  kEqualI,
  kLessI,
  kSelectI,
  kMaskAnd,
  kMaskOr,
  kMaskNot,
  kFirstLanes,
};

// 16 lanes each of up to three operands and the result, as raw words. Conversions see `a` as an array of the
// narrow type. Masks come back as 0 or 1 a lane. `n` is the count of the N forms and of FirstLanes. kFold
// returns its sum in lane 0.
struct VecOperands {
  alignas(64) std::uint32_t a[16];
  alignas(64) std::uint32_t b[16];
  alignas(64) std::uint32_t c[16];
  alignas(64) std::uint32_t out[16];
  int n;
};

namespace vec_probe {
namespace generic {
void Apply(VecOp op, VecOperands* operands);
}
namespace avx2 {
void Apply(VecOp op, VecOperands* operands);
}
namespace avx512 {
void Apply(VecOp op, VecOperands* operands);
}
}  // namespace vec_probe
}  // namespace lockstep
