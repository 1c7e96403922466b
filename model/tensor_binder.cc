#include "model/tensor_binder.h"

#include <algorithm>

#include "model/error.h"
#include "model/json_text.h"

namespace lockstep {
namespace {

constexpr std::int64_t kFp4Block = 32;
constexpr std::uint8_t kE8M0Nan = 255;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::string TextOf(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t d : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(d);
  return text + "]";
}

bool IsFloat(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32; }

bool IsBitRate(std::int64_t bits_x2) {
  return (bits_x2 % 2 == 0 && bits_x2 >= 2 && bits_x2 <= 16) || bits_x2 == 3 || bits_x2 == 5 || bits_x2 == 7;
}

bool IsFiniteF16(std::uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }

}  // namespace

const TensorView* TensorBinder::Find(std::string_view name) const {
  const TensorView* tensor = files_.Find(name);
  return tensor != nullptr ? tensor : files_.Find("model." + std::string(name));
}

void TensorBinder::Fail(const TensorView& tensor, const std::string& what) const {
  throw InputError(tensor.file + ": tensor '" + Printable(tensor.name) + "': " + what);
}

const TensorView& TensorBinder::Take(const std::string& name, const std::string& expected) {
  const TensorView* tensor = Find(name);
  if (tensor == nullptr) throw InputError(dir_ + ": tensor '" + name + "' is missing, expected " + expected);
  used_.insert(tensor);
  return *tensor;
}

void TensorBinder::ExpectShape(const TensorView& tensor, const Shape& shape) const {
  if (tensor.shape == shape) return;
  Fail(tensor, "shape " + TextOf(tensor.shape) + ", expected " + TextOf(shape) + " from config.json");
}

TensorView TensorBinder::Floats(const std::string& name, const Shape& shape) {
  const TensorView& tensor = Take(name, "BF16, F16 or F32 " + TextOf(shape));
  if (!IsFloat(tensor.dtype)) {
    Fail(tensor, "dtype " + std::string(NameOf(tensor.dtype)) + ", expected BF16, F16 or F32");
  }
  ExpectShape(tensor, shape);
  return tensor;
}

TensorView TensorBinder::Typed(const std::string& name, DType dtype, const Shape& shape) {
  const std::string expected(NameOf(dtype));
  const TensorView& tensor = Take(name, expected + " " + TextOf(shape));
  if (tensor.dtype != dtype) {
    Fail(tensor, "dtype " + std::string(NameOf(tensor.dtype)) + ", expected " + expected);
  }
  ExpectShape(tensor, shape);
  return tensor;
}

LinearWeight TensorBinder::Linear(const std::string& name, std::int64_t out_features,
                                  std::int64_t in_features) {
  LinearWeight linear;
  linear.name = name;
  linear.out_features = out_features;
  linear.in_features = in_features;
  if (Has(name + ".trellis")) {
    BindExl3(&linear);
    return linear;
  }
  const Shape shape = {out_features, in_features};
  linear.weight = Take(name + ".weight", "a matrix " + TextOf(shape));
  if (linear.weight.dtype == DType::kF8E4M3) {
    BindFp8(&linear);
  } else if (linear.weight.dtype == DType::kI8) {
    BindFp4(&linear);
  } else if (IsFloat(linear.weight.dtype)) {
    linear.kind = LinearWeight::Kind::kDense;
    ExpectShape(linear.weight, shape);
  } else {
    Fail(linear.weight, "dtype " + std::string(NameOf(linear.weight.dtype)) +
                            ", expected BF16, F16, F32, F8_E4M3 or I8 (packed FP4)");
  }
  return linear;
}

TensorView TensorBinder::TakeBlockScale(const LinearWeight& linear, const Shape& shape) {
  const std::string other = linear.name + ".weight_scale_inv";
  TensorView scale = Typed(Has(other) ? other : linear.name + ".scale", DType::kF8E8M0, shape);
  const std::vector<std::uint8_t> codes = Values<std::uint8_t>(scale);
  const auto nan = std::find(codes.begin(), codes.end(), kE8M0Nan);
  if (nan != codes.end()) Fail(scale, "element " + std::to_string(nan - codes.begin()) + " is NaN");
  return scale;
}

void TensorBinder::BindFp8(LinearWeight* linear) {
  linear->kind = LinearWeight::Kind::kFp8Block;
  linear->block = weight_block_size_;
  ExpectShape(linear->weight, {linear->out_features, linear->in_features});
  linear->scale = TakeBlockScale(
      *linear, {CeilDiv(linear->out_features, linear->block), CeilDiv(linear->in_features, linear->block)});
}

void TensorBinder::BindFp4(LinearWeight* linear) {
  linear->kind = LinearWeight::Kind::kFp4Row;
  linear->block = kFp4Block;
  if (linear->in_features % kFp4Block != 0) {
    Fail(linear->weight,
         "FP4 needs a multiple of 32 inputs, config.json says " + std::to_string(linear->in_features));
  }
  ExpectShape(linear->weight, {linear->out_features, linear->in_features / 2});
  linear->scale = TakeBlockScale(*linear, {linear->out_features, linear->in_features / kFp4Block});
}

TensorView TensorBinder::TakeExl3Scale(const std::string& name, const std::string& signs_name,
                                       std::int64_t size) {
  if (!Has(name) && Has(signs_name)) return Typed(signs_name, DType::kI16, {size / 16});
  TensorView scale = Typed(name, DType::kF16, {size});
  const std::vector<std::uint16_t> values = Values<std::uint16_t>(scale);
  const auto bad = std::find_if_not(values.begin(), values.end(), IsFiniteF16);
  if (bad != values.end()) Fail(scale, "element " + std::to_string(bad - values.begin()) + " is not finite");
  return scale;
}

bool TensorBinder::TakeMarker(const std::string& name) {
  if (!Has(name)) return false;
  const TensorView& marker = Take(name, "I32");
  if (marker.dtype != DType::kI32 || (marker.shape != Shape{} && marker.shape != Shape{1})) {
    Fail(marker, "expected a codebook marker, I32 [] or [1]");
  }
  return true;
}

void TensorBinder::BindExl3(LinearWeight* linear) {
  linear->kind = LinearWeight::Kind::kExl3;
  const std::string& name = linear->name;
  const Shape padded = {CeilDiv(linear->in_features, kExl3HadamardBlock) * kExl3HadamardBlock,
                        CeilDiv(linear->out_features, kExl3HadamardBlock) * kExl3HadamardBlock};
  Exl3Matrix& exl3 = linear->exl3;
  exl3.in_padded = padded[0];
  exl3.out_padded = padded[1];

  const TensorView& trellis = Take(name + ".trellis", "I16");
  if (trellis.dtype != DType::kI16)
    Fail(trellis, "dtype " + std::string(NameOf(trellis.dtype)) + ", expected I16");
  const std::int64_t last = trellis.shape.size() == 3 ? trellis.shape[2] : 0;
  if (last % 8 != 0 || !IsBitRate(last / 8)) {
    Fail(trellis, "shape " + TextOf(trellis.shape) +
                      ", expected [in/16, out/16, 16*K] with K of 1, 1.5, 2, 2.5, 3, 3.5 or 4 to 8 bits");
  }
  ExpectShape(trellis, {padded[0] / kExl3Tile, padded[1] / kExl3Tile, last});
  exl3.trellis = trellis;
  exl3.bits_x2 = static_cast<int>(last / 8);
  exl3.suh = TakeExl3Scale(name + ".suh", name + ".su", padded[0]);
  exl3.svh = TakeExl3Scale(name + ".svh", name + ".sv", padded[1]);

  const bool mcg = TakeMarker(name + ".mcg");
  const bool mul1 = TakeMarker(name + ".mul1");
  if (mcg && mul1) Fail(trellis, "has both codebook markers, mcg and mul1; expected one or none");
  exl3.codebook = mcg ? Codebook::kMcg : mul1 ? Codebook::kMul1 : Codebook::k3inst;

  if (!Has(name + ".bias")) return;
  // Written with the padded length by current quantizers, without the padding by older ones.
  const bool unpadded = Find(name + ".bias")->shape == Shape{linear->out_features};
  exl3.bias = Typed(name + ".bias", DType::kF16, {unpadded ? linear->out_features : padded[1]});
}

std::vector<std::string> TensorBinder::Unused() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : files_.tensors()) {
    if (!used_.contains(&tensor)) names.push_back(name);
  }
  return names;
}

}  // namespace lockstep
