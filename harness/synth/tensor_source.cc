#include "harness/synth/tensor_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "harness/synth/counter_rng.h"
#include "kernels/random_exl3/random_exl3.h"
#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep::synth {
namespace {

constexpr std::int64_t kFp4Block = 32;
constexpr int kE8M0Bias = 127;
constexpr std::uint32_t kMcgMarker = 0xcbac1fed;
constexpr std::uint32_t kMul1Marker = 0x83dcd12d;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Factor that turns NormalInt into values of that deviation.
float NormalUnit(double deviation) { return static_cast<float>(deviation / kNormalDeviation); }

// Writes element(i) for each whole element of a chunk.
template <typename T, typename Element>
void FillElements(std::int64_t offset, std::span<std::byte> chunk, Element element) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t first = offset / kSize, count = static_cast<std::int64_t>(chunk.size()) / kSize;
  std::byte* out = chunk.data();
  for (std::int64_t i = first; i < first + count; ++i, out += kSize) {
    const T value = element(i);
    std::memcpy(out, &value, sizeof(T));
  }
}

// Root mean square of the decoded weights of all 65536 states.
double RmsOf(Codebook codebook) {
  switch (codebook) {
    case Codebook::k3inst:
      return 1.24371;
    case Codebook::kMcg:
      return 1.24411;
    case Codebook::kMul1:
      return 1.00031;
  }
  return 1;
}

}  // namespace

SynthTensor& TensorSource::Add(const std::string& name, DType dtype, const Shape& shape, Fill fill) {
  SynthTensor& tensor = out_.emplace_back();
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.fill = std::move(fill);
  return tensor;
}

void TensorSource::Normal(const std::string& name, DType dtype, const Shape& shape, double mean,
                          double deviation) {
  const auto value = [rng = CounterRng(seed_, name), unit = NormalUnit(deviation),
                      center = static_cast<float>(mean)](std::int64_t i) {
    return center + static_cast<float>(rng.NormalInt(i)) * unit;
  };
  if (dtype == DType::kBF16) {
    Add(name, dtype, shape, [value](std::int64_t offset, std::span<std::byte> chunk) {
      FillElements<std::uint16_t>(offset, chunk, [&](std::int64_t i) { return FloatToBF16(value(i)); });
    });
    return;
  }
  LOCKSTEP_CHECK(dtype == DType::kF32);
  Add(name, dtype, shape,
      [value](std::int64_t offset, std::span<std::byte> chunk) { FillElements<float>(offset, chunk, value); });
}

template <typename T>
void TensorSource::Constant(const std::string& name, DType dtype, const Shape& shape, std::vector<T> values) {
  Add(name, dtype, shape, [values = std::move(values)](std::int64_t offset, std::span<std::byte> chunk) {
    FillElements<T>(offset, chunk, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  });
}

void TensorSource::Floats(const std::string& name, std::vector<float> values) {
  const Shape shape = {static_cast<std::int64_t>(values.size())};
  Constant(name, DType::kF32, shape, std::move(values));
}

void TensorSource::Ids(const std::string& name, const Shape& shape, std::vector<std::int64_t> values) {
  Constant(name, DType::kI64, shape, std::move(values));
}

void TensorSource::Fp8(const std::string& weight, const std::string& scale, const Blocks& b, double deviation) {
  constexpr double kCodeDeviation = 16;  // at the larger scale; at the smaller one twice that
  const int exponent = std::ilogb(deviation / kCodeDeviation);
  const std::int64_t scale_columns = CeilDiv(b.columns, b.column_block);
  const auto exponent_of = [rng = CounterRng(seed_, scale), exponent](std::int64_t block) {
    return exponent - static_cast<int>(rng.Bits(block) & 1u);
  };
  const float large = NormalUnit(std::ldexp(deviation, -exponent)),
              small = NormalUnit(std::ldexp(deviation, 1 - exponent));
  const auto code = [=, rng = CounterRng(seed_, weight)](std::int64_t i) {
    const std::int64_t row = i / b.columns, column = i % b.columns;
    const std::int64_t block = row / b.row_block * scale_columns + column / b.column_block;
    const float unit = exponent_of(block) == exponent ? large : small;
    return FloatToE4M3(static_cast<float>(rng.NormalInt(i)) * unit);
  };
  const auto fill_codes = [code](std::int64_t offset, std::span<std::byte> chunk) {
    FillElements<std::uint8_t>(offset, chunk, code);
  };
  Add(weight, DType::kF8E4M3, {b.rows, b.columns}, fill_codes).made_where_used = b.made_where_used;
  const auto fill_scales = [exponent_of](std::int64_t offset, std::span<std::byte> chunk) {
    FillElements<std::uint8_t>(
        offset, chunk, [&](std::int64_t i) { return static_cast<std::uint8_t>(kE8M0Bias + exponent_of(i)); });
  };
  Add(scale, DType::kF8E8M0, {CeilDiv(b.rows, b.row_block), scale_columns}, fill_scales).made_where_used =
      b.made_where_used;
}

void TensorSource::Fp4Matrix(const std::string& name, std::int64_t out, std::int64_t in, double deviation) {
  constexpr double kCodeRms = 2.92617;  // sqrt(68.5 / 8)
  // Each block takes 2^exponent or 2^(exponent + 1), in the proportion that gives the mean square.
  const double target = deviation / kCodeRms;
  const int exponent = std::ilogb(target);
  const double share = (std::ldexp(target * target, -2 * exponent) - 1) / 3;
  const auto threshold = static_cast<std::uint32_t>(std::lround(share * 65536));
  RandomBytes(name + ".weight", DType::kI8, {out, in / 2});
  Add(name + ".scale", DType::kF8E8M0, {out, in / kFp4Block},
      [rng = CounterRng(seed_, name + ".scale"), exponent, threshold](std::int64_t offset,
                                                                      std::span<std::byte> chunk) {
        FillElements<std::uint8_t>(offset, chunk, [&](std::int64_t i) {
          return static_cast<std::uint8_t>(kE8M0Bias + exponent + (rng.Below(i, 65536) < threshold ? 1 : 0));
        });
      });
}

void TensorSource::Exl3Matrix(const std::string& name, std::int64_t out, std::int64_t in, const Exl3Form& form,
                              double deviation) {
  const std::int64_t k = CeilDiv(in, kExl3HadamardBlock) * kExl3HadamardBlock;
  const std::int64_t n = CeilDiv(out, kExl3HadamardBlock) * kExl3HadamardBlock;
  SynthTensor& trellis = RandomBytes(name + ".trellis", DType::kI16,
                                     {k / kExl3Tile, n / kExl3Tile, std::int64_t{8} * form.bits_x2});
  trellis.made_where_used = true;
  trellis.key = CounterRng(seed_, name + ".trellis").key();
  Exl3Scale(name + ".suh", k, deviation / RmsOf(form.codebook));
  Exl3Scale(name + ".svh", n, 1);
  if (form.codebook == Codebook::kMcg) Marker(name + ".mcg", kMcgMarker);
  if (form.codebook == Codebook::kMul1) Marker(name + ".mul1", kMul1Marker);
}

SynthTensor& TensorSource::RandomBytes(const std::string& name, DType dtype, const Shape& shape) {
  return Add(name, dtype, shape, [rng = CounterRng(seed_, name)](std::int64_t offset, std::span<std::byte> chunk) {
    constexpr std::int64_t kWord = sizeof(std::uint64_t);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(chunk.size()); i += kWord) {
      const std::uint64_t bits = rng.Bits((offset + i) / kWord);
      std::memcpy(chunk.data() + i, &bits,
                  std::min<std::size_t>(kWord, chunk.size() - static_cast<std::size_t>(i)));
    }
  });
}

void TensorSource::Exl3Scale(const std::string& name, std::int64_t size, double magnitude) {
  // Magnitudes are (96 .. 160) / 128 of the mean; their mean square is 1 + (64^2 + 2 * 64) / (12 * 128^2).
  constexpr double kMeanSquare = 1.0 + (64.0 * 64 + 2 * 64) / (12.0 * 128 * 128);
  const auto unit = static_cast<float>(magnitude / std::sqrt(kMeanSquare) / 128);
  const CounterRng rng(seed_, name);
  SynthTensor& scale = Add(name, DType::kF16, {size}, [rng, unit](std::int64_t offset, std::span<std::byte> chunk) {
    FillElements<std::uint16_t>(
        offset, chunk, [&](std::int64_t i) { return FloatToF16(kernels::RandomExl3Scale(rng, i, unit)); });
  });
  scale.made_where_used = true;
  scale.key = rng.key();
  scale.unit = unit;
}

void TensorSource::Marker(const std::string& name, std::uint32_t value) {
  Constant(name, DType::kI32, {}, std::vector<std::uint32_t>{value});
}

}  // namespace lockstep::synth
