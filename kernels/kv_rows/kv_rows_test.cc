// Packing and widening of rows, every implementation, against the reference's quantizers, bit for bit; and the
// quantizers' distance from their input.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kv_rows/kv_rows_cases.h"
#include "kernels/testing/comparison.h"
#include "reference/arithmetic.h"
#include "reference/ops.h"
#include "reference/quantize.h"

namespace lockstep::kernels {
namespace {

// Those of models, and sizes at which nothing fits.
std::vector<RowFormat> Formats() {
  std::vector<RowFormat> formats;
  for (const auto& [name, format] : ModelFormats()) formats.push_back(format);
  for (const int width : {1, 2, 7, 20, 33, 70, 2048}) {
    formats.push_back({.kind = FormatKind::kBf16, .width = width});
    formats.push_back({.kind = FormatKind::kFp8, .width = width, .quantized = width, .block = 32});
    formats.push_back({.kind = FormatKind::kFp8, .width = width, .quantized = (width + 1) / 2, .block = 64});
    formats.push_back({.kind = FormatKind::kFp4E4M3, .width = width, .block = 16});
    formats.push_back({.kind = FormatKind::kFp4E8M0, .width = width, .block = 32});
  }
  for (const int width : {1, 16, 32, 64, 512})
    formats.push_back({.kind = FormatKind::kHadamardFp4, .width = width, .block = 32});
  return formats;
}

std::string Describe(const RowsCase& c) {
  return "kind " + std::to_string(static_cast<int>(c.format.kind)) + ", width " +
         std::to_string(c.format.width) + ", quantized " + std::to_string(c.format.quantized) + ", block " +
         std::to_string(c.format.block) + ", rows " + std::to_string(c.rows) + ", first " +
         std::to_string(c.first) + ", page shift " + std::to_string(c.page_shift) + ", recipe " +
         std::to_string(static_cast<int>(c.recipe));
}

// Every format flat and paged, few rows and more than a page, all recipes.
template <typename Check>
void ForEachCase(Check check) {
  for (const RowFormat& format : Formats()) {
    for (const Recipe recipe : kRecipes) {
      check({.format = format, .rows = 6, .recipe = recipe});
      check({.format = format, .rows = 1, .first = 7, .page_shift = 2, .recipe = recipe});
      check({.format = format, .rows = 23, .first = 6, .page_shift = 3, .recipe = recipe});
      check({.format = format, .rows = 3, .first = 0, .page_shift = 0, .recipe = recipe});
    }
  }
}

// --- the rows as kv_rows.h lays them out
// -----------------------------------------------------------------------------

// Appends codes of x[0..width) and scales as the reference's quantizers choose them.
void QuantizeRow(const RowFormat& f, std::vector<float> x, std::byte* row) {
  const bool fp8 = f.kind == FormatKind::kFp8;
  if (f.kind == FormatKind::kHadamardFp4) {
    reference::Butterfly(x.data(), f.width);
    for (float& value : x)
      value = RoundToBF16(value * static_cast<float>(1.0 / std::sqrt(static_cast<double>(f.width))));
  }
  const int width = fp8 ? f.quantized : f.width;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(width) + 1, 0), scales;
  for (int begin = 0; begin < width; begin += f.block) {
    const int n = std::min(f.block, width - begin);
    const auto kind = f.kind == FormatKind::kFp4E4M3 ? reference::Fp4Scale::kE4M3 : reference::Fp4Scale::kE8M0;
    float* block = x.data() + begin;
    const float scale =
        fp8 ? reference::ActQuant8Block(block, n, block) : reference::ActQuant4Block(block, n, kind, block);
    for (int i = begin; i < begin + n; ++i) {
      const float value = x[static_cast<std::size_t>(i)];
      codes[static_cast<std::size_t>(i)] = fp8 ? FloatToE4M3(value) : FloatToE2M1(value);
    }
    scales.push_back(f.kind == FormatKind::kFp4E4M3
                         ? FloatToE4M3(scale)
                         : static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(scale) >> 23));
  }
  for (int i = 0; i < width; i += fp8 ? 1 : 2)
    *row++ = static_cast<std::byte>(fp8 ? codes[static_cast<std::size_t>(i)]
                                        : codes[static_cast<std::size_t>(i)] |
                                              codes[static_cast<std::size_t>(i) + 1] << 4);
  for (const std::uint8_t scale : scales) *row++ = static_cast<std::byte>(scale);
}

// Channels that are stored as they are, from `first` on.
void CopyRow(const std::uint16_t* x, int first, int width, std::byte* row) {
  for (int d = first; d < width; ++d) {
    *row++ = static_cast<std::byte>(x[d] & 0xff);
    *row++ = static_cast<std::byte>(x[d] >> 8);
  }
}

// Bytes of a row before its padding.
std::int64_t UsedBytes(const RowFormat& f) {
  const std::int64_t blocks =
      f.block > 0 ? ((f.kind == FormatKind::kFp8 ? f.quantized : f.width) + f.block - 1) / f.block : 0;
  if (f.kind == FormatKind::kBf16) return 2 * f.width;
  if (f.kind == FormatKind::kFp8) return f.quantized + blocks + 2 * (f.width - f.quantized);
  return (f.width + 1) / 2 + blocks;
}

std::vector<std::byte> Packed(const PackProblem& p) {
  std::vector<std::byte> stored = std::get<0>(p.Start());
  for (std::int64_t i = 0; i < p.rows; ++i) {
    std::byte* row = stored.data() + p.RowOffset(i);
    const std::uint16_t* x = p.x.data() + i * p.x_stride;
    if (p.format.kind == FormatKind::kBf16)
      CopyRow(x, 0, p.format.width, row);
    else
      QuantizeRow(p.format, Widened<float>(p.x, i * p.x_stride, p.format.width), row);
    if (p.format.kind == FormatKind::kFp8)
      CopyRow(x, p.format.quantized, p.format.width,
              row + UsedBytes(p.format) - 2 * (p.format.width - p.format.quantized));
  }
  return stored;
}

// Nothing is said of the padding of rows.
void ForgetPadding(const RowsCase& c, std::vector<std::byte>* stored) {
  for (std::int64_t i = 0; i < c.rows; ++i)
    for (std::int64_t b = UsedBytes(c.format); b < c.format.row_bytes(); ++b)
      (*stored)[static_cast<std::size_t>(c.RowOffset(i) + b)] = kGuardByte;
}

void ExpectPacked(const PackProblem& p) {
  const std::vector<std::byte> expected = Packed(p);
  for (const int threads : {1, 3}) {
    for (const Implementation& implementation : Implementations(Profile::kSm90, threads)) {
      auto [stored] = RunOn(implementation, p);
      ForgetPadding(p, &stored);
      EXPECT_TRUE(SameBits(stored, expected)) << Describe(p) << ", " << implementation;
    }
  }
}

std::vector<std::uint16_t> Unpacked(const UnpackProblem& p) {
  std::vector<std::uint16_t> y = std::get<0>(p.Start());
  for (std::int64_t i = 0; i < p.rows; ++i) {
    for (int d = 0; d < p.format.width; ++d)
      y[static_cast<std::size_t>(i * p.y_stride + d)] =
          FloatToBF16(StoredValue(p.format, p.stored.data() + p.RowOffset(i), d));
  }
  return y;
}

TEST(PackRows, HasTheBytesOfTheReferencesQuantizers) {
  ForEachCase([](const RowsCase& c) { ExpectPacked(PackProblem(c)); });
}

// Norm and RoPE of the reference, packed as above; with a weight, without a norm, of widths that a block takes at once and others.
TEST(NormRopePack, HasTheBytesOfTheReferencesSteps) {
  constexpr int kRopeDim = 32;
  const reference::RopeTable table(10000.0, YarnConfig{}, kRopeDim);
  std::vector<RowFormat> formats;
  for (const auto& [name, format] : ModelFormats()) formats.push_back(format);
  formats.push_back({.kind = FormatKind::kFp8, .width = 70, .quantized = 38, .block = 32});
  formats.push_back({.kind = FormatKind::kBf16, .width = 1024});
  for (const RowFormat& format : formats) {
    for (const bool normed : {true, false}) {
      constexpr std::int64_t kRows = 6;
      PackProblem p({.format = format, .rows = kRows});
      std::vector<std::uint16_t> x, y;
      const std::vector<float> weight = Inputs(77).F32(format.width, Recipe::kNormal);
      std::vector<float> angles;
      for (std::int64_t t = 0; t < kRows; ++t) {
        std::vector<float> row = Widened<float>(p.x, t * p.x_stride, format.width);
        for (const float value : row) x.push_back(FloatToBF16(value));
        if (normed) reference::RmsNorm<reference::Contract>(row.data(), {weight.begin(), weight.begin() + format.width}, 1e-6, row.data());
        for (float& value : row) value = RoundToBF16(value);
        reference::ApplyRope<reference::Contract>(table, 3 * t, reference::RopeDirection::kForward, row.data(), format.width);
        for (std::size_t d = 0; d < row.size(); ++d) y.push_back(p.x[static_cast<std::size_t>(t * p.x_stride) + d] = FloatToBF16(row[d]));
      }
      for (std::int64_t position = 0; position < 3 * kRows; ++position) {
        std::vector<float> cosine, sine;
        table.CosSin(position, &cosine, &sine);
        angles.insert(angles.end(), cosine.begin(), cosine.end());
        angles.insert(angles.end(), sine.begin(), sine.end());
      }
      const std::vector<std::byte> expected = Packed(p);
      for (const Implementation& implementation : Implementations(Profile::kSm90)) {
        std::vector<std::uint16_t> rows = x;
        auto [stored] = p.Start();
        std::tuple<std::vector<std::byte>> output = {stored};
        CallMemory memory(implementation);
        NormRopePackArgs args;
        std::uint16_t* at = memory.InOut(rows);
        if (normed) args.norm = {at, format.width, kRows, format.width, memory.In(weight), 1e-6f, at, format.width};
        args.rope = {at, kRows, 1, format.width, kRopeDim, memory.In(angles), memory.Own(std::vector<std::int64_t>{0, 3, 6, 9, 12, 15}), false};
        args.pack = p.Place(memory, output);
        args.pack.x = at, args.pack.x_stride = format.width;
        implementation.kernels().norm_rope_pack(implementation.stream(), args);
        memory.Finish();
        ForgetPadding(p, &std::get<0>(output));
        EXPECT_TRUE(SameBits(std::get<0>(output), expected)) << Describe(p) << ", " << implementation;
        EXPECT_TRUE(SameBits(rows, y)) << Describe(p) << ", " << implementation;
      }
    }
  }
}

// A row goes to the call's own rows and to its place, if it has one.
TEST(PackRows, ToBothPlacesOrOnlyOne) {
  for (const auto& [name, format] : ModelFormats()) {
    const PackProblem p({.format = format, .rows = 5});
    const std::vector<std::byte> expected = Packed(p);
    for (const Implementation& implementation : Implementations(Profile::kSm90)) {
      PackProblem::Output flat = p.Start(), places = p.Start();
      CallMemory memory(implementation);
      PackRowsArgs args = p.Place(memory, flat);
      std::byte* place = memory.InOut(std::get<0>(places));
      std::vector<std::byte*> to;
      for (std::int64_t i = 0; i < p.rows; ++i) to.push_back(i % 2 == 0 ? place + p.RowOffset(i) : nullptr);
      args.to_T = memory.Own(std::move(to));
      implementation.kernels().pack_rows(implementation.stream(), args);
      memory.Finish();
      ForgetPadding(p, &std::get<0>(flat));
      ForgetPadding(p, &std::get<0>(places));
      EXPECT_TRUE(SameBits(std::get<0>(flat), expected)) << name << ", " << implementation;
      for (std::int64_t i = 0; i < p.rows; ++i) {
        const std::byte* row = std::get<0>(places).data() + p.RowOffset(i);
        const bool placed = std::equal(row, row + p.format.row_bytes(), expected.data() + p.RowOffset(i));
        EXPECT_EQ(placed, i % 2 == 0) << name << ", row " << i << ", " << implementation;
      }
    }
  }
}

TEST(UnpackRows, WidensEveryCodeAndScale) {
  ForEachCase([](const RowsCase& c) {
    const UnpackProblem p(c);
    ExpectEverywhere(p, Unpacked(p), Profile::kSm90, Describe(c));
  });
}

// All finite bf16 values: neighbours together in a block, then far apart.
TEST(PackRows, EveryFiniteValue) {
  for (const auto& [name, format] : ModelFormats()) {
    if (format.kind == FormatKind::kHadamardFp4) continue;  // sums of the largest overflow
    PackProblem p({.format = format, .rows = 65536 / format.width});
    for (const std::int64_t step : {1, 9973}) {
      for (std::int64_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i * step);
        const bool finite = (bits & 0x7f80) != 0x7f80;
        p.x[static_cast<std::size_t>(i / format.width * p.x_stride + i % format.width)] =
            finite ? bits : std::uint16_t{0};
      }
      ExpectPacked(p);
    }
  }
}

// A row that was packed widens to what the reference attends to, and again packs to the same bytes.
TEST(PackRows, ThenUnpackIsTheFakeQuantizedRow) {
  for (const auto& [name, format] : ModelFormats()) {
    const PackProblem pack({.format = format, .rows = 9});
    UnpackProblem unpack({.format = format, .rows = 9});
    unpack.stored = Packed(pack);
    UnpackProblem::Output expected = unpack.Start();
    for (std::int64_t i = 0; i < 9; ++i) {
      std::vector<float> x = Widened<float>(pack.x, i * pack.x_stride, format.width);
      if (name == "window_v41") reference::FakeQuant8(x.data(), 512, 32);
      if (name == "latent_v4") reference::FakeQuant8(x.data(), 448, 64);
      if (name == "compressed_v41") reference::FakeQuant4(x.data(), 512, 16, reference::Fp4Scale::kE4M3);
      if (name == "index_v41") reference::FakeQuant4(x.data(), 128, 32, reference::Fp4Scale::kE8M0);
      if (name == "index_v4") {
        reference::Butterfly(x.data(), 128);
        for (float& value : x) value = RoundToBF16(value * static_cast<float>(1.0 / std::sqrt(128.0)));
        reference::FakeQuant4(x.data(), 128, 32, reference::Fp4Scale::kE8M0);
      }
      for (std::size_t d = 0; d < x.size(); ++d)
        std::get<0>(expected)[static_cast<std::size_t>(i * unpack.y_stride) + d] = FloatToBF16(x[d]);
    }
    EXPECT_TRUE(Trustworthy(std::get<0>(expected), 100));
    ExpectEverywhere(unpack, expected, Profile::kSm90, name);
  }
}

// Half a spacing of the code's format at most, in units of the scale; two codes further away is too far.
TEST(PackRows, IsNearItsInput) {
  struct Precision {
    const char* format;
    double relative, absolute;  // half spacings: of normal codes, of subnormal ones
    int largest_code;
  };
  for (const Precision& precision :
       {Precision{"window_v41", 0x1p-4, 0x1p-10, 126}, Precision{"index_v41", 0.25, 0.25, 7}}) {
    for (const auto& [name, format] : ModelFormats()) {
      if (name != precision.format) continue;
      const PackProblem p({.format = format, .rows = 3});
      const auto [stored] = RunOn(Implementations(Profile::kSm90).back(), p);
      const int width = format.width;
      const bool fp8 = format.kind == FormatKind::kFp8;
      for (int i = 0; i < 3 * width; ++i) {
        const int row = i / width, d = i % width;
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(stored.data() + p.RowOffset(row));
        const int code = fp8 ? bytes[d] : (bytes[d / 2] >> (d % 2 * 4)) & 0xf, sign = fp8 ? 0x80 : 8,
                  magnitude = code & (sign - 1);
        const double scale = std::ldexp(1.0, bytes[(fp8 ? width : width / 2) + d / format.block] - 127);
        const auto value = [&](int c) {
          return scale * static_cast<double>(fp8 ? E4M3ToFloat(static_cast<std::uint8_t>(c))
                                                 : E2M1ToFloat(static_cast<std::uint8_t>(c)));
        };
        const double x = static_cast<double>(BF16ToFloat(p.x[static_cast<std::size_t>(row * p.x_stride + d)]));
        const double bound = std::max(precision.relative * std::fabs(x), precision.absolute * scale);
        ASSERT_LE(std::fabs(value(code) - x), bound) << name << ", channel " << d;
        if (magnitude + 2 > precision.largest_code) continue;
        ASSERT_GT(std::fabs(value(code + 2) - x), bound) << name << ", channel " << d;
      }
    }
  }
}

TEST(KvRowsContract, IdsAreTheSameEverywhere) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    EXPECT_EQ(implementation.kernels().pack_rows.contract, "pack_rows/F");
    EXPECT_EQ(implementation.kernels().unpack_rows.contract, "unpack_rows/F");
  }
}

}  // namespace
}  // namespace lockstep::kernels
