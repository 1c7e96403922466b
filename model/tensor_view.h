// A read-only view of one checkpoint tensor.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/dtype.h"

namespace lockstep {

// Where the bytes of a tensor come from that neither lies in a file nor exists in memory: random numbers by position.
struct RandomTensor {
  std::uint64_t key = 0;  // of the stream of numbers
  float unit = 0;         // EXL3 scales: what a number is multiplied by
  // Makes bytes [offset, offset + chunk.size()), whole elements.
  std::function<void(std::int64_t offset, std::span<std::byte> chunk)> fill;
};

// Row-major, contiguous, not owning. `data` may be unaligned (safetensors promise nothing): read elements with
// At<T>().
struct TensorView {
  std::string name;  // as in the file
  std::string file;  // path of the file it lies in, for messages
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  std::shared_ptr<const RandomTensor> random;  // set: there is no `data`, and only Read() and RowBytes() work

  bool empty() const { return data.data() == nullptr && !random; }
  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(SizeOf(dtype)); }
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
  // Copies or makes bytes [offset, offset + out.size()), whole elements.
  void Read(std::int64_t offset, std::span<std::byte> out) const;
  // Row `i` of a matrix, where it lies; a random one is made in `storage`, in which it stays.
  std::span<const std::byte> RowBytes(std::int64_t i, std::vector<std::byte>* storage) const;
};

// Element `index` as fp32, exact, for the dtypes of TensorView::Float.
float FloatAt(DType dtype, const std::byte* elements, std::int64_t index);

}  // namespace lockstep
