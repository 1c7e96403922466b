// The layout of an EXL3 matrix in a blob of random bits, for programs that time products.
#pragma once

#include <cstdint>

#include "kernels/linear/linear_layout.h"

namespace lockstep::timing {

// mul1 takes the codes of `--act-quant auto`. The matrix, its input and output scales lie one behind the other from byte `base` of the blob.
inline kernels::LinearSpec Exl3Spec(Codebook codebook, int bits_x2, std::int32_t in, std::int32_t out, std::int64_t base = 0) {
  kernels::LinearSpec spec;
  spec.kind = kernels::LinearSpec::Kind::kExl3;
  spec.codebook = codebook;
  spec.bits_x2 = bits_x2;
  spec.in_features = spec.in_padded = in;
  spec.out_features = spec.out_padded = out;
  spec.act_limit = codebook == Codebook::kMul1 ? ActQuantLimit(ActQuant::kAuto, bits_x2) : 0;
  spec.weight = base;
  spec.input_scale = base + std::int64_t{in} / 16 * (out / 16) * 16 * bits_x2;
  spec.output_scale = spec.input_scale + 4 * std::int64_t{in};
  spec.bytes = spec.output_scale + 4 * std::int64_t{out} - base;
  return spec;
}

}  // namespace lockstep::timing
