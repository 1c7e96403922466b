// Element types of checkpoint tensors.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

enum class DType {
  kBF16,    // bfloat16
  kF16,     // IEEE binary16
  kF32,     // IEEE binary32
  kF8E4M3,  // "fn" variant: largest 448, no infinity, NaN 0x7f and 0xff
  kF8E8M0,  // 2^(byte-127), 255 is NaN
  kI8,      // also packed FP4 E2M1, two a byte, low nibble first
  kU8,
  kI16,  // also the EXL3 trellis, raw uint16
  kI32,
  kI64,
};

// Bytes of one element.
std::size_t SizeOf(DType dtype);

// The safetensors name, "BF16", "F8_E4M3" and so on.
std::string_view NameOf(DType dtype);

// The type with that safetensors name. Returns false for a name this program does not read.
bool ParseDType(std::string_view name, DType* dtype);

}  // namespace lockstep
