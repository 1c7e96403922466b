#include "reference/testing/test_linear.h"

#include <cstring>
#include <utility>

#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep::reference {
namespace {

template <typename T>
std::vector<std::byte> BytesOf(std::span<const T> values) {
  std::vector<std::byte> bytes(values.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> Encode(DType dtype, std::span<const float> values) {
  if (dtype == DType::kF32) return BytesOf(values);
  LOCKSTEP_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  std::vector<std::uint16_t> half;
  for (const float v : values) half.push_back(dtype == DType::kF16 ? FloatToF16(v) : FloatToBF16(v));
  return BytesOf(std::span<const std::uint16_t>(half));
}

std::int64_t RoundUpTo128(std::int64_t n) { return (n + 127) / 128 * 128; }

}  // namespace

TensorView TestLinear::Store(DType dtype, std::vector<std::int64_t> shape, std::vector<std::byte> bytes) {
  storage_.push_back(std::move(bytes));
  TensorView view;
  view.name = "linear.weight";
  view.file = "memory";
  view.dtype = dtype;
  view.shape = std::move(shape);
  view.data = storage_.back();
  LOCKSTEP_CHECK(view.data.size() == static_cast<std::size_t>(view.elements()) * SizeOf(dtype));
  return view;
}

TestLinear TestLinear::Dense(DType dtype, std::int64_t out, std::int64_t in, std::span<const float> values) {
  TestLinear linear;
  *linear.weight_ = {
      .kind = LinearWeight::Kind::kDense, .name = "linear", .out_features = out, .in_features = in};
  linear.weight_->weight = linear.Store(dtype, {out, in}, Encode(dtype, values));
  return linear;
}

TestLinear TestLinear::Fp8(int block, std::int64_t out, std::int64_t in, std::span<const std::uint8_t> codes,
                           std::span<const std::uint8_t> scales) {
  TestLinear linear;
  *linear.weight_ = {
      .kind = LinearWeight::Kind::kFp8Block, .name = "linear", .out_features = out, .in_features = in};
  linear.weight_->block = block;
  linear.weight_->weight = linear.Store(DType::kF8E4M3, {out, in}, BytesOf(codes));
  linear.weight_->scale =
      linear.Store(DType::kF8E8M0, {(out + block - 1) / block, (in + block - 1) / block}, BytesOf(scales));
  return linear;
}

TestLinear TestLinear::Fp4(std::int64_t out, std::int64_t in, std::span<const std::uint8_t> codes,
                           std::span<const std::uint8_t> scales) {
  std::vector<std::uint8_t> packed(codes.size() / 2);
  for (std::size_t i = 0; i < packed.size(); ++i) {
    packed[i] = static_cast<std::uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
  TestLinear linear;
  *linear.weight_ = {
      .kind = LinearWeight::Kind::kFp4Row, .name = "linear", .out_features = out, .in_features = in};
  linear.weight_->block = 32;
  linear.weight_->weight =
      linear.Store(DType::kI8, {out, in / 2}, BytesOf(std::span<const std::uint8_t>(packed)));
  linear.weight_->scale = linear.Store(DType::kF8E8M0, {out, in / 32}, BytesOf(scales));
  return linear;
}

TestLinear TestLinear::FromExl3(const Exl3& parts) {
  const std::int64_t in = RoundUpTo128(parts.in), out = RoundUpTo128(parts.out);
  TestLinear linear;
  *linear.weight_ = {
      .kind = LinearWeight::Kind::kExl3, .name = "linear", .out_features = parts.out, .in_features = parts.in};
  Exl3Matrix& matrix = linear.weight_->exl3;
  matrix.codebook = parts.codebook;
  matrix.bits_x2 = parts.bits_x2;
  matrix.in_padded = in;
  matrix.out_padded = out;
  matrix.trellis =
      linear.Store(DType::kI16, {in / 16, out / 16, 8 * parts.bits_x2}, BytesOf(std::span(parts.words)));
  matrix.suh = linear.Store(DType::kF16, {in}, Encode(DType::kF16, parts.suh));
  matrix.svh = linear.Store(DType::kF16, {out}, Encode(DType::kF16, parts.svh));
  if (!parts.bias.empty()) matrix.bias = linear.Store(DType::kF16, {out}, Encode(DType::kF16, parts.bias));
  return linear;
}

}  // namespace lockstep::reference
