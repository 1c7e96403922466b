// Problems of the packed rows: what the test compares and the benchmark times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/kv_rows/kv_rows.h"
#include "kernels/testing/inputs.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

using FormatKind = RowFormat::Kind;

// The rows that models keep.
inline std::vector<Named<RowFormat>> ModelFormats() {
  return {{"window_v41", {.kind = FormatKind::kFp8, .width = 512, .quantized = 512, .block = 32}},
          {"latent_v4", {.kind = FormatKind::kFp8, .width = 512, .quantized = 448, .block = 64}},
          {"compressed_v41", {.kind = FormatKind::kFp4E4M3, .width = 512, .block = 16}},
          {"index_v41", {.kind = FormatKind::kFp4E8M0, .width = 128, .block = 32}},
          {"index_v4", {.kind = FormatKind::kHadamardFp4, .width = 128, .block = 32}},
          {"bf16", {.kind = FormatKind::kBf16, .width = 512}}};
}

// Rows in pages of 2^page_shift that lie in no order, guards between them; or one after the other (page_shift
// -1).
struct RowsCase {
  RowFormat format;
  std::int64_t rows = 1;
  std::int64_t first = 0;  // number of the first row, paged
  int page_shift = -1;
  Recipe recipe = Recipe::kNormal;

  bool flat() const { return page_shift < 0; }
  std::int64_t page_bytes() const { return (format.row_bytes() << page_shift) + 12; }
  std::int64_t pages() const { return ((first + rows - 1) >> page_shift) + 1; }
  std::int64_t stored_bytes() const {
    return (flat() ? rows * format.row_bytes() : pages() * page_bytes()) + static_cast<std::int64_t>(kMargin);
  }
  // Where page i lies: odd ones before even ones.
  std::int64_t PageOffset(std::int64_t i) const {
    const std::int64_t odd = pages() / 2;
    return (i % 2 ? i / 2 : odd + i / 2) * page_bytes();
  }
  // Where row i of the call lies.
  std::int64_t RowOffset(std::int64_t i) const {
    if (flat()) return i * format.row_bytes();
    const std::int64_t row = first + i, mask = (std::int64_t{1} << page_shift) - 1;
    return PageOffset(row >> page_shift) + (row & mask) * format.row_bytes();
  }
  PagedRows Pages(CallMemory& memory, const std::byte* stored) const {
    std::vector<std::byte*> addresses;
    for (std::int64_t i = 0; i < pages(); ++i)
      addresses.push_back(const_cast<std::byte*>(stored) + PageOffset(i));
    return {.pages = memory.Own(std::move(addresses)),
            .page_shift = page_shift,
            .row_bytes = static_cast<std::int32_t>(format.row_bytes())};
  }
};

inline constexpr std::byte kGuardByte{0x5b};

struct PackProblem : RowsCase {
  using Output = std::tuple<std::vector<std::byte>>;
  static constexpr auto kKernel = &KernelTable::pack_rows;
  std::int64_t x_stride;
  std::vector<std::uint16_t> x;  // [rows][x_stride]

  explicit PackProblem(const RowsCase& c) : RowsCase(c), x_stride(format.width + 3) {
    Inputs inputs(31);
    x = inputs.BF16(rows * x_stride, recipe);
    for (std::int64_t i = 0; i < rows * x_stride; ++i) {
      std::uint16_t& value = x[static_cast<std::size_t>(i)];
      if (i % x_stride >= format.width)
        value = kPoisonBF16;
      else if (i / x_stride % 5 == 3 && i % x_stride < format.block)
        value = 0;  // a block of zeros
      else if (i / x_stride % 5 == 4)
        value = FloatToBF16(BF16ToFloat(value) * 0x1p-125f);
    }
  }
  Output Start() const { return std::vector<std::byte>(static_cast<std::size_t>(stored_bytes()), kGuardByte); }
  PackRowsArgs Place(CallMemory& memory, Output& y) const {
    std::byte* stored = memory.InOut(std::get<0>(y));
    std::vector<std::byte*> to;
    for (std::int64_t i = 0; i < rows; ++i) to.push_back(stored + RowOffset(i));
    return {.format = format,
            .x = memory.In(x),
            .x_stride = x_stride,
            .rows = rows,
            .flat = flat() ? stored : nullptr,
            .to_T = flat() ? nullptr : memory.Own(std::move(to))};
  }
  Work work() const {
    return {.bytes = static_cast<double>(rows * (2 * format.width + format.row_bytes())),
            .items = static_cast<double>(rows)};
  }
};

// A stored row of any codes, its scale bytes in [low, high].
inline void FillPackedRow(const RowFormat& format, Recipe recipe, std::int64_t low, std::int64_t high,
                          Inputs& inputs, std::byte* row) {
  const auto put = [&](std::int64_t value) { *row++ = static_cast<std::byte>(value); };
  const auto put_bf16 = [&](std::int64_t n) {
    for (std::int64_t d = 0; d < n; ++d) {
      const std::uint16_t bits = FloatToBF16(inputs.Value(recipe));
      put(bits & 0xff);
      put(bits >> 8);
    }
  };
  if (format.kind == FormatKind::kBf16) return put_bf16(format.width);
  const bool fp8 = format.kind == FormatKind::kFp8;
  const int width = fp8 ? format.quantized : format.width;
  for (int i = 0; i < (fp8 ? width : (width + 1) / 2); ++i)
    put(fp8 ? inputs.Integer(0, 126) | inputs.Integer(0, 1) << 7 : inputs.Integer(0, 255));  // not NaN
  for (int b = 0; b * format.block < width; ++b) put(inputs.Integer(low, high));
  if (fp8) put_bf16(format.width - width);
}

// Channel d of a stored row, by the layout that kv_rows.h describes.
inline float StoredValue(const RowFormat& format, const std::byte* stored, int d) {
  const auto* row = reinterpret_cast<const std::uint8_t*>(stored);
  const bool fp8 = format.kind == FormatKind::kFp8;
  const int quantized = format.kind == FormatKind::kBf16 ? 0 : fp8 ? format.quantized : format.width;
  const std::uint8_t* scales = row + (fp8 ? quantized : (quantized + 1) / 2);
  if (d >= quantized) {
    const std::uint8_t* rest =
        scales + (quantized > 0 ? (quantized + format.block - 1) / format.block : 0) + 2 * (d - quantized);
    return BF16ToFloat(static_cast<std::uint16_t>(rest[0] | rest[1] << 8));
  }
  const std::uint8_t scale = scales[d / format.block];
  const float code = fp8 ? E4M3ToFloat(row[d]) : E2M1ToFloat((row[d / 2] >> (d % 2 * 4)) & 0xf);
  return code * (format.kind == FormatKind::kFp4E4M3 ? E4M3ToFloat(scale) : E8M0ToFloat(scale));
}

// Stored rows of any codes and scales; what lies between them is poison.
struct UnpackProblem : RowsCase {
  using Output = std::tuple<std::vector<std::uint16_t>>;
  static constexpr auto kKernel = &KernelTable::unpack_rows;
  std::int64_t y_stride;
  std::vector<std::byte> stored;

  explicit UnpackProblem(const RowsCase& c)
      : RowsCase(c),
        y_stride(format.width + 5),
        stored(static_cast<std::size_t>(stored_bytes()), std::byte{0xff}) {
    Inputs inputs(32);
    const bool e4m3_scales = format.kind == FormatKind::kFp4E4M3;
    for (std::int64_t i = 0; i < rows; ++i)
      FillPackedRow(format, recipe, e4m3_scales ? 0 : 60, e4m3_scales ? 126 : 190, inputs,
                    stored.data() + RowOffset(i));
  }
  Output Start() const { return UnwrittenBF16(rows * y_stride); }
  UnpackRowsArgs Place(CallMemory& memory, Output& y) const {
    const std::byte* bytes = memory.In(stored);
    return {.format = format,
            .src = flat() ? PagedRows{} : Pages(memory, bytes),
            .first = first,
            .flat = flat() ? bytes : nullptr,
            .rows = rows,
            .y = memory.InOut(std::get<0>(y)),
            .y_stride = y_stride};
  }
  Work work() const {
    return {.bytes = static_cast<double>(rows * (2 * format.width + format.row_bytes())),
            .items = static_cast<double>(rows)};
  }
};

}  // namespace lockstep::kernels
