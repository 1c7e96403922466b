#include "kernels/linear/linear_layout.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;

constexpr std::int64_t kAlignment = 256;
constexpr std::uint8_t kE8M0Nan = 255;

std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t AlignUp(std::int64_t bytes) { return DivideUp(bytes, kAlignment) * kAlignment; }

Kind DenseKind(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return Kind::kBF16;
    case DType::kF16:
      return Kind::kF16;
    case DType::kF32:
      return Kind::kF32;
    default:
      LOCKSTEP_CHECK(!"a dense linear of BF16, F16 or F32");
  }
}

bool IsBlockScaled(const LinearWeight& weight) {
  return weight.kind == LinearWeight::Kind::kFp8Block || weight.kind == LinearWeight::Kind::kFp4Row;
}

Kind KindOf(const LinearWeight& weight, bool quantize_input) {
  if (weight.kind == LinearWeight::Kind::kExl3) return Kind::kExl3;
  if (!IsBlockScaled(weight)) return DenseKind(weight.weight.dtype);
  if (!quantize_input) return Kind::kBF16;
  return weight.kind == LinearWeight::Kind::kFp8Block ? Kind::kFp8Block : Kind::kFp4Row;
}

struct PartSizes {
  std::int64_t weight = 0, scale = 0, input_scale = 0, output_scale = 0, bias = 0;
};

PartSizes SizesOf(const LinearSpec& spec) {
  const std::int64_t out = spec.out_features, in = spec.in_features;
  switch (spec.kind) {
    case Kind::kBF16:
    case Kind::kF16:
      return {.weight = 2 * out * in};
    case Kind::kF32:
      return {.weight = 4 * out * in};
    case Kind::kFp8Block:
      return {.weight = out * in, .scale = DivideUp(out, spec.block) * DivideUp(in, spec.block)};
    case Kind::kFp4Row:
      return {.weight = out * in / 2, .scale = out * DivideUp(in, spec.block)};
    case Kind::kExl3:
      break;
  }
  const std::int64_t tiles = std::int64_t{spec.in_padded / kExl3Tile} * (spec.out_padded / kExl3Tile);
  return {.weight = tiles * spec.tile_bytes(),
          .input_scale = 4 * std::int64_t{spec.in_padded},
          .output_scale = 4 * std::int64_t{spec.out_padded},
          .bias = spec.has_bias ? 4 * std::int64_t{spec.out_padded} : 0};
}

void PlaceParts(LinearSpec* spec, std::int64_t begin) {
  const PartSizes sizes = SizesOf(*spec);
  spec->weight = begin;
  spec->scale = spec->weight + AlignUp(sizes.weight);
  spec->input_scale = spec->scale + AlignUp(sizes.scale);
  spec->output_scale = spec->input_scale + AlignUp(sizes.input_scale);
  spec->bias = spec->output_scale + AlignUp(sizes.output_scale);
  spec->bytes = spec->bias + AlignUp(sizes.bias) - begin;
}

// --- packing -------------------------------------------------------------------------------------------------

[[noreturn]] void ThrowNotFinite(const TensorView& tensor, std::int64_t row, std::int64_t column) {
  throw InputError(tensor.file + ": tensor " + tensor.name + ": expected finite weights, row " +
                   std::to_string(row) + ", column " + std::to_string(column) + " is not");
}

// Fills dst[0, bytes) from source and zeroes up to the alignment.
void CopyPart(const std::byte* source, std::int64_t bytes, std::byte* dst) {
  std::memcpy(dst, source, static_cast<std::size_t>(bytes));
  std::memset(dst + bytes, 0, static_cast<std::size_t>(AlignUp(bytes) - bytes));
}

// Whether no element has all bits of `mask` set, which is what infinities and NaN have.
template <typename T>
bool FiniteElements(const std::byte* elements, std::int64_t n, T mask) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    T bits;
    std::memcpy(&bits, elements + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    finite &= (bits & mask) != mask;
  }
  return finite;
}

bool RowIsFinite(Kind kind, const std::byte* row, std::int64_t n) {
  switch (kind) {
    case Kind::kBF16:
      return FiniteElements<std::uint16_t>(row, n, 0x7f80);
    case Kind::kF16:
      return FiniteElements<std::uint16_t>(row, n, 0x7c00);
    case Kind::kF32:
      return FiniteElements<std::uint32_t>(row, n, 0x7f800000);
    case Kind::kFp8Block:
      return FiniteElements<std::uint8_t>(row, n, 0x7f);
    default:
      return true;
  }
}

// Bytes of one stored row of `kind`.
std::int64_t RowBytes(Kind kind, std::int64_t in) {
  switch (kind) {
    case Kind::kF32:
      return 4 * in;
    case Kind::kFp8Block:
      return in;
    case Kind::kFp4Row:
      return in / 2;
    default:
      return 2 * in;
  }
}

// Codes or dense values keep their stored bytes; only this matrix's rows are taken.
void PackStoredRows(const LinearWeight& weight, const LinearSpec& spec, std::byte* dst) {
  const std::int64_t row_bytes = RowBytes(spec.kind, spec.in_features);
  const std::byte* source = weight.weight.data.data() + weight.row_begin * row_bytes;
  for (std::int64_t n = 0; n < spec.out_features; ++n) {
    const std::byte* row = source + n * row_bytes;
    if (RowIsFinite(spec.kind, row, spec.in_features)) continue;
    std::int64_t k = 0;
    const std::int64_t step = row_bytes / spec.in_features;
    while (RowIsFinite(spec.kind, row + k * step, 1)) ++k;
    ThrowNotFinite(weight.weight, weight.row_begin + n, k);
  }
  CopyPart(source, spec.out_features * row_bytes, dst + spec.weight);
}

void PackBlockScales(const LinearWeight& weight, const LinearSpec& spec, std::byte* dst) {
  const std::int64_t columns = DivideUp(spec.in_features, spec.block);
  const bool tiles = spec.kind == Kind::kFp8Block;
  // A tile of scales that began in the rows before would need an offset that no kernel has; only wo_a has
  // slices, and it is dense.
  LOCKSTEP_CHECK(!tiles || weight.row_begin % spec.block == 0);
  const std::int64_t first = tiles ? weight.row_begin / spec.block : weight.row_begin;
  const std::int64_t rows = tiles ? DivideUp(spec.out_features, spec.block) : spec.out_features;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    if (weight.scale.At<std::uint8_t>(first * columns + i) == kE8M0Nan)
      ThrowNotFinite(weight.scale, first + i / columns, i % columns);
  }
  CopyPart(weight.scale.data.data() + first * columns, rows * columns, dst + spec.scale);
}

float DequantisedWeight(const LinearWeight& weight, std::int64_t row, std::int64_t k) {
  const std::int64_t columns = DivideUp(weight.in_features, weight.block);
  const std::int64_t i = row * weight.in_features + k;
  if (weight.kind == LinearWeight::Kind::kFp8Block) {
    return weight.weight.Float(i) * weight.scale.Float(row / weight.block * columns + k / weight.block);
  }
  const unsigned pair = weight.weight.At<std::uint8_t>(i / 2);
  const float code = E2M1ToFloat(static_cast<std::uint8_t>(k % 2 == 0 ? pair & 0xfu : pair >> 4));
  return code * weight.scale.Float(row * columns + k / weight.block);
}

void PackDequantised(const LinearWeight& weight, const LinearSpec& spec, std::byte* dst) {
  std::vector<std::uint16_t> row(static_cast<std::size_t>(spec.in_features));
  const auto row_bytes = static_cast<std::int64_t>(2 * row.size());
  for (std::int64_t n = 0; n < spec.out_features; ++n) {
    for (std::int64_t k = 0; k < spec.in_features; ++k) {
      const float value = DequantisedWeight(weight, weight.row_begin + n, k);
      if (!std::isfinite(value)) ThrowNotFinite(weight.weight, weight.row_begin + n, k);
      row[static_cast<std::size_t>(k)] = FloatToBF16(value);
    }
    std::memcpy(dst + spec.weight + n * row_bytes, row.data(), static_cast<std::size_t>(row_bytes));
  }
  const std::int64_t bytes = spec.out_features * row_bytes;
  std::memset(dst + spec.weight + bytes, 0, static_cast<std::size_t>(AlignUp(bytes) - bytes));
}

void PackTiles(const Exl3Matrix& matrix, const LinearSpec& spec, std::byte* dst) {
  const std::int64_t k_tiles = spec.in_padded / kExl3Tile, n_tiles = spec.out_padded / kExl3Tile,
                     bytes = spec.tile_bytes();
  const std::byte* source = matrix.trellis.data.data();
  for (std::int64_t nt = 0; nt < n_tiles; ++nt) {
    for (std::int64_t kt = 0; kt < k_tiles; ++kt) {
      std::memcpy(dst + (nt * k_tiles + kt) * bytes, source + (kt * n_tiles + nt) * bytes,
                  static_cast<std::size_t>(bytes));
    }
  }
  const std::int64_t total = n_tiles * k_tiles * bytes;
  std::memset(dst + total, 0, static_cast<std::size_t>(AlignUp(total) - total));
}

void PackExl3(const Exl3Matrix& matrix, const LinearSpec& spec, std::byte* dst) {
  PackTiles(matrix, spec, dst + spec.weight);
  std::vector<float> values;
  const auto write = [&](std::int64_t n, std::int64_t offset, const TensorView& tensor, auto value_at) {
    values.clear();
    for (std::int64_t i = 0; i < n; ++i) {
      values.push_back(value_at(i));
      if (!std::isfinite(values.back())) ThrowNotFinite(tensor, 0, i);
    }
    CopyPart(reinterpret_cast<const std::byte*>(values.data()), 4 * n, dst + offset);
  };
  write(spec.in_padded, spec.input_scale, matrix.suh, [&](std::int64_t i) { return matrix.InputScale(i); });
  write(spec.out_padded, spec.output_scale, matrix.svh, [&](std::int64_t i) { return matrix.OutputScale(i); });
  if (!spec.has_bias) return;
  const std::int64_t stored = matrix.bias.elements();
  write(spec.out_padded, spec.bias, matrix.bias,
        [&](std::int64_t i) { return i < stored ? matrix.bias.Float(i) : 0.0f; });
}

// Kernels count on scales that change between strips of 16 outputs or inputs and never within a segment.
void CheckBlocks(const LinearWeight& weight, int activation_block) {
  for (const int block : {weight.block, activation_block}) {
    if (block >= 16 && 128 % block == 0) continue;
    throw InputError(weight.weight.file + ": tensor " + weight.weight.name + ": expected scale blocks of 16, 32, 64 or 128, got " +
                     std::to_string(block));
  }
}

}  // namespace

LinearSpec MakeLinearSpec(const LinearWeight& weight, const NumericsOptions& numerics, int activation_block,
                          bool quantize_input) {
  LinearSpec spec;
  spec.kind = KindOf(weight, quantize_input);
  spec.out_features = static_cast<std::int32_t>(weight.out_features);
  spec.in_features = static_cast<std::int32_t>(weight.in_features);
  if (spec.kind == Kind::kFp8Block || spec.kind == Kind::kFp4Row) {
    spec.block = weight.block;
    spec.activation_block = numerics.fake_quant ? activation_block : 0;
    CheckBlocks(weight, activation_block);
  }
  if (spec.kind == Kind::kExl3) {
    spec.codebook = weight.exl3.codebook;
    spec.bits_x2 = weight.exl3.bits_x2;
    spec.in_padded = static_cast<std::int32_t>(weight.exl3.in_padded);
    spec.out_padded = static_cast<std::int32_t>(weight.exl3.out_padded);
    spec.act_limit = spec.codebook == Codebook::kMul1 ? ActQuantLimit(numerics.act_quant, spec.bits_x2) : 0;
    spec.has_bias = weight.exl3.bias.empty() ? 0 : 1;
  }
  PlaceParts(&spec, 0);
  return spec;
}

void PackLinear(const LinearWeight& weight, const LinearSpec& spec, std::byte* dst) {
  if (spec.kind == Kind::kExl3) return PackExl3(weight.exl3, spec, dst);
  if (IsBlockScaled(weight) && spec.kind == Kind::kBF16) return PackDequantised(weight, spec, dst);
  PackStoredRows(weight, spec, dst);
  if (IsBlockScaled(weight)) PackBlockScales(weight, spec, dst);
}

ExpertSpec MakeExpertSpec(const ExpertWeights& weights, const NumericsOptions& numerics, int activation_block) {
  ExpertSpec spec;
  const auto add = [&](const LinearWeight& weight) {
    LinearSpec part = MakeLinearSpec(weight, numerics, activation_block);
    PlaceParts(&part, spec.bytes);
    spec.bytes += part.bytes;
    return part;
  };
  spec.gate = add(weights.w1);
  spec.up = add(weights.w3);
  spec.down = add(weights.w2);
  return spec;
}

void PackExpert(const ExpertWeights& weights, const ExpertSpec& spec, std::byte* dst) {
  PackLinear(weights.w1, spec.gate, dst);
  PackLinear(weights.w3, spec.up, dst);
  PackLinear(weights.w2, spec.down, dst);
}

}  // namespace lockstep::kernels
