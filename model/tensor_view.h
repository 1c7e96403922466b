// A read-only view of one checkpoint tensor.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "model/dtype.h"

namespace lockstep {

// Row-major, contiguous, not owning. `data` may be unaligned (safetensors promise nothing): read elements with
// At<T>().
struct TensorView {
  std::string name;  // as in the file
  std::string file;  // path of the file it lies in, for messages
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;

  bool empty() const { return data.data() == nullptr; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (std::int64_t d : shape) n *= d;
    return n;
  }
  // The element with that flat index, as raw storage of type T (sizeof(T) == SizeOf(dtype)).
  template <typename T>
  T At(std::int64_t index) const {
    T value;
    std::memcpy(&value, data.data() + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  // Element as fp32, exact, for BF16, F16, F32, F8_E4M3 and F8_E8M0.
  float Float(std::int64_t index) const;
  // All elements as fp32 (same dtypes).
  std::vector<float> Floats() const;
  // Rows [begin, end) of the first dimension.
  TensorView Rows(std::int64_t begin, std::int64_t end) const;
};

}  // namespace lockstep
