// Contract family H: what tensor cores compute, as integer arithmetic. docs/numerics.md section 2.
#pragma once

#include <cstdint>
#include <vector>

#include "model/numerics_options.h"

namespace lockstep::reference {

enum class OperandFormat { kFp16, kBf16 };

// Values of a 16-bit format taken apart: value = significand * 2^(exponent - fraction_bits). The exponent of a subnormal is the
// format's smallest normal exponent.
struct Operands {
  OperandFormat format = OperandFormat::kBf16;
  std::vector<std::int16_t> significand;
  std::vector<std::int16_t> exponent;

  int fraction_bits() const { return format == OperandFormat::kFp16 ? 10 : 7; }
  float Value(std::int64_t index) const;
};

// Takes n floats apart that are exactly representable in `format` and finite.
Operands MakeOperands(const float* values, std::int64_t n, OperandFormat format);

// Row data of family H in the form its profile works on: values for fma, operands for the MMA profiles.
struct HRows {
  std::vector<float> values;
  Operands operands;
};
HRows MakeHRows(Profile profile, std::vector<float> values, OperandFormat format);

// H(0; a, b) over n products a[a_begin + k] * b[b_begin + k].
float ChainH(Profile profile, const HRows& a, std::int64_t a_begin, const HRows& b, std::int64_t b_begin, std::int64_t n);

// The same on values exactly representable in bf16.
float DotH(Profile profile, const float* a, const float* b, std::int64_t n);

// H(c; a, b) over n products a[a_begin + k] * b[b_begin + k], blocks ascending, tail padded with zero products. Not for Profile::kFma.
float MmaChain(Profile profile, float c, const Operands& a, std::int64_t a_begin, const Operands& b, std::int64_t b_begin,
               std::int64_t n);

}  // namespace lockstep::reference
