#include "model/exl3_layout.h"

#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep {
namespace {

// `scales` is F16 [n], or I16 [n/16] of sign bits.
float ScaleAt(const TensorView& scales, std::int64_t i) {
  if (scales.dtype == DType::kF16) return F16ToFloat(scales.At<std::uint16_t>(i));
  LOCKSTEP_CHECK(scales.dtype == DType::kI16);
  const unsigned word = scales.At<std::uint16_t>(i / 16);
  return (word >> (i % 16)) & 1u ? -1.0f : 1.0f;
}

}  // namespace

std::string_view NameOf(Codebook codebook) {
  switch (codebook) {
    case Codebook::k3inst:
      return "3inst";
    case Codebook::kMcg:
      return "mcg";
    case Codebook::kMul1:
      return "mul1";
  }
  LOCKSTEP_CHECK(false);
}

float Exl3Matrix::InputScale(std::int64_t i) const { return ScaleAt(suh, i); }

float Exl3Matrix::OutputScale(std::int64_t j) const { return ScaleAt(svh, j); }

}  // namespace lockstep
