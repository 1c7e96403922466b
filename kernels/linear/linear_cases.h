// Linears in every storage form, made from a seed: what the tests compare and the benchmarks time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/linear/linear_layout.h"
#include "kernels/testing/inputs.h"
#include "model/float_formats.h"

namespace lockstep::kernels {

struct LinearCase {
  LinearSpec::Kind kind = LinearSpec::Kind::kBF16;
  std::int64_t out = 0, in = 0;
  int bits_x2 = 6;                      // kExl3
  Codebook codebook = Codebook::kMul1;  // kExl3
  bool bias = false;                    // kExl3
  int block = 32;                       // kFp8Block
  Recipe recipe = Recipe::kNormal;
  std::int64_t row_begin =
      0;  // the matrix is a slice of a stored one with row_begin more rows before and one block after
};

// A weight and the bytes that its views look at.
struct TestLinear {
  std::vector<std::byte> weight_bytes, scale_bytes, suh_bytes, svh_bytes, bias_bytes;
  LinearWeight weight;
};

class LinearMaker {
 public:
  explicit LinearMaker(std::uint64_t seed) : values_(seed) {}

  TestLinear Make(const LinearCase& c) {
    TestLinear linear;
    linear.weight.name =
        "test.linear" + std::to_string(values_.Bits());  // the reference keeps decoded matrices by name
    linear.weight.out_features = c.out;
    linear.weight.in_features = c.in;
    if (c.kind == LinearSpec::Kind::kExl3) {
      MakeExl3(c, &linear);
    } else {
      linear.weight.row_begin = c.row_begin;
      MakeStored(c, &linear);
    }
    return linear;
  }

  // bf16 [rows][n].
  std::vector<std::uint16_t> InputRows(std::int64_t rows, std::int64_t n, Recipe recipe) {
    std::vector<std::uint16_t> x(static_cast<std::size_t>(rows * n));
    for (std::uint16_t& value : x) value = FloatToBF16(values_.Value(recipe, 1.0f));
    if (recipe != Recipe::kSpiky) return x;
    for (std::int64_t t = 0; t < rows; ++t) {  // a block of zeros somewhere, and on odd rows everything tiny
      for (std::int64_t k = t % 3 * 128; k < std::min<std::int64_t>(n, t % 3 * 128 + 128); ++k)
        x[static_cast<std::size_t>(t * n + k)] = 0;
      if (t % 4 != 3) continue;
      for (std::int64_t k = 0; k < n; ++k) {
        std::uint16_t& value = x[static_cast<std::size_t>(t * n + k)];
        value = FloatToBF16(BF16ToFloat(value) * 0x1p-120f);
      }
    }
    return x;
  }

 private:
  template <typename T>
  static void Append(T value, std::vector<std::byte>* bytes) {
    const std::size_t end = bytes->size();
    bytes->resize(end + sizeof(T));
    std::memcpy(bytes->data() + end, &value, sizeof(T));
  }

  static TensorView View(const char* name, DType dtype, std::vector<std::int64_t> shape,
                         const std::vector<std::byte>& bytes) {
    return {.name = name, .file = "made.safetensors", .dtype = dtype, .shape = std::move(shape), .data = bytes};
  }

  void MakeStored(const LinearCase& c, TestLinear* linear) {
    const bool fp8 = c.kind == LinearSpec::Kind::kFp8Block, fp4 = c.kind == LinearSpec::Kind::kFp4Row;
    const std::int64_t rows = c.row_begin + c.out + (c.row_begin ? 32 : 0);
    for (std::int64_t i = 0; i < rows * c.in; ++i) {
      const float value = values_.Value(c.recipe, fp8 ? 60.0f : 0.5f);
      if (c.kind == LinearSpec::Kind::kBF16) Append(FloatToBF16(value), &linear->weight_bytes);
      if (c.kind == LinearSpec::Kind::kF16) Append(FloatToF16(value), &linear->weight_bytes);
      if (c.kind == LinearSpec::Kind::kF32) Append(value, &linear->weight_bytes);
      if (fp8) Append(FloatToE4M3(std::fmin(std::fmax(value, -448.0f), 448.0f)), &linear->weight_bytes);
      if (fp4 && i % 2 == 0)
        Append(static_cast<std::uint8_t>(values_.Bits() & (c.recipe == Recipe::kLattice ? 0x77u : 0xffu)),
               &linear->weight_bytes);
    }
    const DType dtype = fp8                                 ? DType::kF8E4M3
                        : fp4                               ? DType::kI8
                        : c.kind == LinearSpec::Kind::kBF16 ? DType::kBF16
                        : c.kind == LinearSpec::Kind::kF16  ? DType::kF16
                                                            : DType::kF32;
    linear->weight.weight = View("w", dtype, {rows, fp4 ? c.in / 2 : c.in}, linear->weight_bytes);
    if (!fp8 && !fp4) return;
    const int block = fp8 ? c.block : 32;
    const std::int64_t scale_rows = fp8 ? (rows + block - 1) / block : rows,
                       columns = (c.in + block - 1) / block;
    for (std::int64_t i = 0; i < scale_rows * columns; ++i) {
      Append(static_cast<std::uint8_t>(c.recipe == Recipe::kLattice ? 127 : 115 + values_.Bits() % 12),
             &linear->scale_bytes);
    }
    linear->weight.kind = fp8 ? LinearWeight::Kind::kFp8Block : LinearWeight::Kind::kFp4Row;
    linear->weight.block = block;
    linear->weight.scale = View("w.scale", DType::kF8E8M0, {scale_rows, columns}, linear->scale_bytes);
  }

  void MakeExl3(const LinearCase& c, TestLinear* linear) {
    Exl3Matrix& matrix = linear->weight.exl3;
    linear->weight.kind = LinearWeight::Kind::kExl3;
    matrix.codebook = c.codebook;
    matrix.bits_x2 = c.bits_x2;
    matrix.in_padded = (c.in + 127) / 128 * 128;
    matrix.out_padded = (c.out + 127) / 128 * 128;
    const std::int64_t tiles = matrix.in_padded / 16 * (matrix.out_padded / 16);
    linear->weight_bytes.resize(static_cast<std::size_t>(tiles * 16 * c.bits_x2));
    for (std::size_t i = 0; i < linear->weight_bytes.size(); i += 8) {
      const std::uint64_t bits = values_.Bits();
      std::memcpy(linear->weight_bytes.data() + i, &bits, 8);
    }
    const auto scale = [&] {
      const float magnitude =
          c.recipe == Recipe::kLattice ? 1.0f : 0.5f + 0.1f * std::fabs(values_.Value(Recipe::kNormal));
      return FloatToF16(values_.Bits() % 2 ? magnitude : -magnitude);
    };
    for (std::int64_t i = 0; i < matrix.in_padded; ++i) Append(scale(), &linear->suh_bytes);
    for (std::int64_t i = 0; i < matrix.out_padded; ++i) Append(scale(), &linear->svh_bytes);
    matrix.trellis = View("w.trellis", DType::kI16,
                          {matrix.in_padded / 16, matrix.out_padded / 16, 8 * c.bits_x2}, linear->weight_bytes);
    matrix.suh = View("w.suh", DType::kF16, {matrix.in_padded}, linear->suh_bytes);
    matrix.svh = View("w.svh", DType::kF16, {matrix.out_padded}, linear->svh_bytes);
    if (!c.bias) return;
    for (std::int64_t i = 0; i < c.out; ++i)
      Append(FloatToF16(values_.Value(c.recipe, 0.1f)), &linear->bias_bytes);
    matrix.bias = View("w.bias", DType::kF16, {c.out}, linear->bias_bytes);
  }

  Inputs values_;
};

}  // namespace lockstep::kernels
