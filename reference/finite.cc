#include "reference/finite.h"

#include "model/error.h"

namespace lockstep::reference {

std::vector<float> ReadParameters(const TensorView& tensor) {
  std::vector<float> values = tensor.Floats();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      throw InputError(tensor.file + ": tensor " + tensor.name + " holds a value that is not finite at element " + std::to_string(i));
    }
  }
  return values;
}

void ThrowNotFinite(std::string_view step, int layer, std::int64_t position) {
  throw InputError("step " + std::string(step) + (layer < 0 ? "" : " of layer " + std::to_string(layer)) + ", position " +
                   std::to_string(position) + ": a value is not finite; the weights or activations overflow");
}

}  // namespace lockstep::reference
