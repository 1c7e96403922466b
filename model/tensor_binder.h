// Finds the tensors of one checkpoint by name, checks each against the dtype and shape its role demands, and
// remembers which were used.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "model/checkpoint.h"

namespace lockstep {

using Shape = std::vector<std::int64_t>;

// Every name may carry the prefix "model." in the files. All functions throw InputError naming the file (the
// directory for a missing tensor), the tensor and what was expected.
class TensorBinder {
 public:
  // `files` must outlive the binder.
  TensorBinder(const SafetensorsSet& files, std::string dir, int weight_block_size)
      : files_(files), dir_(std::move(dir)), weight_block_size_(weight_block_size) {}

  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  // Whether a matrix of that name exists in any form.
  bool HasLinear(const std::string& name) const { return Has(name + ".weight") || Has(name + ".trellis"); }

  // A tensor of BF16, F16 or F32.
  TensorView Floats(const std::string& name, const Shape& shape);
  TensorView Typed(const std::string& name, DType dtype, const Shape& shape);

  // A matrix in any of the forms of LinearWeight, scales checked to be numbers.
  LinearWeight Linear(const std::string& name, std::int64_t out_features, std::int64_t in_features);

  // The values of a bound tensor, read in one piece.
  template <typename T>
  std::vector<T> Values(const TensorView& tensor) const {
    const std::vector<std::byte> bytes = files_.Read(tensor);
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }

  // The names of all tensors that nothing above has returned.
  std::vector<std::string> Unused() const;

  [[noreturn]] void Fail(const TensorView& tensor, const std::string& what) const;

 private:
  const TensorView* Find(std::string_view name) const;
  // The tensor, now counted as used.
  const TensorView& Take(const std::string& name, const std::string& expected);
  void ExpectShape(const TensorView& tensor, const Shape& shape) const;

  void BindFp8(LinearWeight* linear);
  void BindFp4(LinearWeight* linear);
  void BindExl3(LinearWeight* linear);
  TensorView TakeBlockScale(const LinearWeight& linear, const Shape& shape);
  // suh or svh of `size` channels, or their sign-only forms su and sv.
  TensorView TakeExl3Scale(const std::string& name, const std::string& signs_name, std::int64_t size);
  bool TakeMarker(const std::string& name);

  const SafetensorsSet& files_;
  std::string dir_;
  int weight_block_size_;
  std::unordered_set<const TensorView*> used_;
};

}  // namespace lockstep
