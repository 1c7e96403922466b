#include "model/tensor_view.h"

#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep {

float TensorView::Float(std::int64_t index) const {
  switch (dtype) {
    case DType::kBF16:
      return BF16ToFloat(At<std::uint16_t>(index));
    case DType::kF16:
      return F16ToFloat(At<std::uint16_t>(index));
    case DType::kF32:
      return At<float>(index);
    case DType::kF8E4M3:
      return E4M3ToFloat(At<std::uint8_t>(index));
    case DType::kF8E8M0:
      return E8M0ToFloat(At<std::uint8_t>(index));
    default:
      LOCKSTEP_CHECK(!"a tensor of floating-point numbers");
  }
}

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

}  // namespace lockstep
