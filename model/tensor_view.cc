#include "model/tensor_view.h"

#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep {

namespace {

template <typename T>
T Stored(const std::byte* elements, std::int64_t index) {
  T value;
  std::memcpy(&value, elements + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

float FloatAt(DType dtype, const std::byte* elements, std::int64_t index) {
  switch (dtype) {
    case DType::kBF16:
      return BF16ToFloat(Stored<std::uint16_t>(elements, index));
    case DType::kF16:
      return F16ToFloat(Stored<std::uint16_t>(elements, index));
    case DType::kF32:
      return Stored<float>(elements, index);
    case DType::kF8E4M3:
      return E4M3ToFloat(Stored<std::uint8_t>(elements, index));
    case DType::kF8E8M0:
      return E8M0ToFloat(Stored<std::uint8_t>(elements, index));
    default:
      LOCKSTEP_CHECK(!"a tensor of floating-point numbers");
  }
}

float TensorView::Float(std::int64_t index) const { return FloatAt(dtype, data.data(), index); }

std::vector<float> TensorView::Floats() const {
  std::vector<float> values(static_cast<std::size_t>(elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = Float(static_cast<std::int64_t>(i));
  return values;
}

TensorView TensorView::Rows(std::int64_t begin, std::int64_t end) const {
  LOCKSTEP_CHECK(!shape.empty() && 0 <= begin && begin <= end && end <= shape[0]);
  TensorView rows = *this;
  rows.shape[0] = end - begin;
  if (shape[0] == 0) return rows;
  const std::size_t row_bytes = data.size() / static_cast<std::size_t>(shape[0]);
  rows.data = data.subspan(static_cast<std::size_t>(begin) * row_bytes,
                           static_cast<std::size_t>(end - begin) * row_bytes);
  return rows;
}

void TensorView::Read(std::int64_t offset, std::span<std::byte> out) const {
  if (random) return random->fill(offset, out);
  if (!out.empty()) std::memcpy(out.data(), data.data() + offset, out.size());
}

std::span<const std::byte> TensorView::RowBytes(std::int64_t i, std::vector<std::byte>* storage) const {
  LOCKSTEP_CHECK(shape.size() == 2 && 0 <= i && i < shape[0]);
  const std::size_t row_bytes = static_cast<std::size_t>(shape[1]) * SizeOf(dtype);
  if (!random) return data.subspan(static_cast<std::size_t>(i) * row_bytes, row_bytes);
  storage->resize(row_bytes);
  random->fill(i * static_cast<std::int64_t>(row_bytes), *storage);
  return *storage;
}

}  // namespace lockstep
