// Compiled once per instruction set. Quantizers: docs/numerics.md section 5.
#include "kernels/contract/vec.h"
#include "kernels/kv_rows/kv_pack_rows.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

constexpr int kMaxWidth = 2048;

int Lanes(std::int64_t n, std::int64_t i) { return n - i < 16 ? static_cast<int>(n - i) : 16; }

float MaxAbs(const float* x, int n) {
  float top = 0.0f;
  for (int i = 0; i < n; i += 16) {
    float lanes[16];
    Store(Abs(LoadN(x + i, Lanes(n, i))), lanes);
    for (float v : lanes) top = v > top ? v : top;
  }
  return top;
}

// Exponent byte of 2^ceil(log2(x)), x positive and normal.
std::uint8_t CeilExponent(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  return static_cast<std::uint8_t>((bits >> 23) + ((bits & 0x7fffffu) ? 1u : 0u));
}

float PowerOf(std::uint8_t exponent) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(exponent) << 23); }

// x / scale clamped to [-limit, limit].
F32x16 Scaled(const float* x, int count, float scale, float limit) {
  return Max(Min(Div(LoadN(x, count), F32x16(scale)), F32x16(limit)), F32x16(-limit));
}

// E4M3 codes of values in [-448, 448].
I32x16 E4M3Codes(F32x16 v) {
  const I32x16 bits = BitsOf(v), magnitude = bits & I32x16(INT32_MAX), sign = ShiftRightLogical(bits, I32x16(24)) & I32x16(0x80);
  const I32x16 subnormal = BitsOf(Add(FloatOf(magnitude), F32x16(0x1p14f))) - I32x16(0x46800000);
  const I32x16 rounded = magnitude + I32x16(0x7ffff) + ((magnitude >> 20) & I32x16(1));
  return sign | Select(Less(magnitude, I32x16(0x3c800000)), subnormal, (rounded - I32x16(0x3c000000)) >> 20);
}

float E4M3Value(std::uint8_t code) {
  const int exponent = (code >> 3) & 0xf, mantissa = code & 7;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : static_cast<float>(8 + mantissa) * PowerOf(static_cast<std::uint8_t>(exponent - 10 + 127));
  return (code & 0x80) ? -magnitude : magnitude;
}

std::uint8_t E4M3Code(float v) {
  std::uint8_t code[16];
  StoreI8(E4M3Codes(F32x16(v)), reinterpret_cast<std::int8_t*>(code));
  return code[0];
}

// E2M1 codes of values in [-6, 6]: the number of thresholds passed; at 0.75, 1.75 and 3.5 the tie goes up.
I32x16 E2M1Codes(F32x16 v) {
  const F32x16 a = Abs(v);
  const I32x16 one(1), zero(0);
  I32x16 code = Select(Less(F32x16(0.25f), a), one, zero) + Select(LessEqual(F32x16(0.75f), a), one, zero) +
                Select(Less(F32x16(1.25f), a), one, zero) + Select(LessEqual(F32x16(1.75f), a), one, zero) +
                Select(Less(F32x16(2.5f), a), one, zero) + Select(LessEqual(F32x16(3.5f), a), one, zero) +
                Select(Less(F32x16(5.0f), a), one, zero);
  return code | (ShiftRightLogical(BitsOf(v), I32x16(28)) & I32x16(8));
}

// Values of E4M3 codes, one a lane: the exponent moved to where fp32 has it; below code 8 the mantissa counts alone. No row
// stores the NaN code, but poisoned rows hold nothing else, and must not look like numbers.
F32x16 E4M3Values(I32x16 code) {
  const I32x16 magnitude = code & I32x16(0x7f);
  const F32x16 normal = FloatOf((magnitude << 20) + I32x16(120 << 23)), subnormal = Mul(ToFloat(magnitude), F32x16(0x1p-9f));
  const F32x16 value = Select(Less(magnitude, I32x16(8)), subnormal, normal);
  const I32x16 nan = Select(Equal(magnitude, I32x16(0x7f)), I32x16(0x7fc00000), I32x16(0));
  return FloatOf(BitsOf(value) | nan | ((code & I32x16(0x80)) << 24));
}

// The same of E2M1 codes.
F32x16 E2M1Values(I32x16 code) {
  const I32x16 magnitude = code & I32x16(7);
  const F32x16 normal = FloatOf((magnitude << 22) + I32x16(126 << 23)), subnormal = Mul(ToFloat(magnitude), F32x16(0.5f));
  return FloatOf(BitsOf(Select(Less(magnitude, I32x16(2)), subnormal, normal)) | ((code & I32x16(8)) << 28));
}

// Values of n E4M3 codes.
void DecodeE4M3(const std::uint8_t* codes, int n, float* values) {
  int i = 0;
  for (; i + 16 <= n; i += 16) Store(E4M3Values(LoadU8(codes + i)), values + i);
  if (i == n) return;
  std::uint8_t tail[16] = {};
  __builtin_memcpy(tail, codes + i, static_cast<std::size_t>(n - i));
  StoreN(E4M3Values(LoadU8(tail)), values + i, n - i);
}

// Values of 32 E2M1 codes, low nibbles first.
void DecodeE2M1Block(const std::uint8_t* codes, float* values) {
  const I32x16 pair = LoadU8(codes);
  float low[16], high[16];
  Store(E2M1Values(pair), low);
  Store(E2M1Values(pair >> 4), high);
  for (int i = 0; i < 16; ++i) {
    values[2 * i] = low[i];
    values[2 * i + 1] = high[i];
  }
}

void DecodeE2M1(const std::uint8_t* codes, int n, float* values) {
  int i = 0;
  for (; i + 32 <= n; i += 32) DecodeE2M1Block(codes + i / 2, values + i);
  if (i == n) return;
  std::uint8_t tail[16] = {};
  float tail_values[32];
  __builtin_memcpy(tail, codes + i / 2, static_cast<std::size_t>(n - i + 1) / 2);
  DecodeE2M1Block(tail, tail_values);
  __builtin_memcpy(values + i, tail_values, static_cast<std::size_t>(n - i) * sizeof(float));
}

void PackFp8(const RowFormat& f, const float* x, std::uint8_t* row) {
  std::uint8_t* scales = row + f.quantized;
  for (int begin = 0; begin < f.quantized; begin += f.block) {
    const int n = f.quantized - begin < f.block ? f.quantized - begin : f.block;
    const float top = MaxAbs(x + begin, n);
    const std::uint8_t exponent = CeilExponent(Mul(top > 1e-4f ? top : 1e-4f, static_cast<float>(1.0 / 448.0)));
    scales[begin / f.block] = exponent;
    for (int i = begin; i < begin + n; i += 16) {
      const int count = Lanes(begin + n, i);
      std::int8_t codes[16];
      StoreI8(E4M3Codes(Scaled(x + i, count, PowerOf(exponent), 448.0f)), codes);
      __builtin_memcpy(row + i, codes, static_cast<std::size_t>(count));
    }
  }
}

// Scale byte of an FP4 block and the scale itself.
std::uint8_t Fp4Scale(const RowFormat& f, float top, float* scale) {
  if (f.kind == RowFormat::Kind::kFp4E4M3) {
    const float a = top > 6.0f * 0x1p-9f ? top : 6.0f * 0x1p-9f, s = Div(a, 6.0f);
    const std::uint8_t code = E4M3Code(s < 448.0f ? s : 448.0f);
    *scale = E4M3Value(code);
    return code;
  }
  const float a = top > 6.0f * 0x1p-126f ? top : 6.0f * 0x1p-126f;
  const std::uint8_t exponent = CeilExponent(Mul(a, static_cast<float>(1.0 / 6.0)));
  *scale = PowerOf(exponent);
  return exponent;
}

void PackFp4(const RowFormat& f, const float* x, std::uint8_t* row) {
  std::uint8_t* scales = row + (f.width + 1) / 2;
  std::uint8_t codes[kMaxWidth + 16];
  for (int begin = 0; begin < f.width; begin += f.block) {
    const int n = f.width - begin < f.block ? f.width - begin : f.block;
    float scale;
    scales[begin / f.block] = Fp4Scale(f, MaxAbs(x + begin, n), &scale);
    for (int i = begin; i < begin + n; i += 16) {
      StoreI8(E2M1Codes(Scaled(x + i, Lanes(begin + n, i), scale, 6.0f)), reinterpret_cast<std::int8_t*>(codes + i));
    }
  }
  for (int i = 0; i + 1 < f.width; i += 2) row[i / 2] = static_cast<std::uint8_t>(codes[i] | (codes[i + 1] << 4));
  if (f.width % 2 != 0) row[f.width / 2] = codes[f.width - 1];
}

// Butterfly with strides 1, 2, 4, ..., then times 1/sqrt(n), rounded to bf16.
void Hadamard(float* x, int n) {
  for (int stride = 1; stride < n; stride *= 2) {
    for (int i = 0; i < n; ++i) {
      if (i & stride) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = Add(a, b);
      x[i + stride] = Sub(a, b);
    }
  }
  const float scale = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(n)));
  for (int i = 0; i < n; i += 16) {
    const int count = Lanes(n, i);
    StoreN(RoundToBF16(Mul(LoadN(x + i, count), F32x16(scale))), x + i, count);
  }
}

}  // namespace

void PackRow(const RowFormat& f, const std::uint16_t* x, std::byte* row) {
  auto* out = reinterpret_cast<std::uint8_t*>(row);
  if (f.kind == RowFormat::Kind::kBf16) {
    __builtin_memcpy(out, x, 2 * static_cast<std::size_t>(f.width));
    return;
  }
  float values[kMaxWidth];
  for (int i = 0; i < f.width; i += 16) StoreN(LoadBF16N(x + i, Lanes(f.width, i)), values + i, Lanes(f.width, i));
  if (f.kind == RowFormat::Kind::kFp8) {
    PackFp8(f, values, out);
    const int scales = (f.quantized + f.block - 1) / f.block;
    __builtin_memcpy(out + f.quantized + scales, x + f.quantized, 2 * static_cast<std::size_t>(f.width - f.quantized));
    return;
  }
  if (f.kind == RowFormat::Kind::kHadamardFp4) Hadamard(values, f.width);
  PackFp4(f, values, out);
}

void UnpackFp4(const RowFormat& f, const std::byte* row, float* values, float* scales) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  const std::uint8_t* scale_bytes = codes + (f.width + 1) / 2;
  const int blocks = (f.width + f.block - 1) / f.block;
  DecodeE2M1(codes, f.width, values);
  if (f.kind == RowFormat::Kind::kFp4E4M3) {
    DecodeE4M3(scale_bytes, blocks, scales);
  } else {
    for (int b = 0; b < blocks; ++b) scales[b] = PowerOf(scale_bytes[b]);
  }
}

void UnpackRow(const RowFormat& f, const std::byte* row, std::uint16_t* y) {
  if (f.kind == RowFormat::Kind::kBf16) {
    __builtin_memcpy(y, row, 2 * static_cast<std::size_t>(f.width));
    return;
  }
  float values[kMaxWidth], scales[kMaxWidth];
  int width = f.width;
  if (f.kind == RowFormat::Kind::kFp8) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
    width = f.quantized;
    DecodeE4M3(bytes, width, values);
    const int blocks = (width + f.block - 1) / f.block;
    for (int b = 0; b < blocks; ++b) scales[b] = PowerOf(bytes[width + b]);
    __builtin_memcpy(y + width, bytes + width + blocks, 2 * static_cast<std::size_t>(f.width - width));
  } else {
    UnpackFp4(f, row, values, scales);
  }
  for (int begin = 0; begin < width; begin += f.block) {
    const int end = begin + f.block < width ? begin + f.block : width;
    const F32x16 scale(scales[begin / f.block]);
    for (int i = begin; i < end; i += 16) StoreBF16N(Mul(LoadN(values + i, Lanes(end, i)), scale), y + i, Lanes(end, i));
  }
}

void PackRowsRows(const PackRowsArgs& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t bytes = a.format.row_bytes();
  for (std::int64_t i = begin; i < end; ++i) {
    std::byte *flat = a.flat ? a.flat + i * bytes : nullptr, *to = a.to_T ? a.to_T[i] : nullptr;
    if (std::byte* first = flat ? flat : to) PackRow(a.format, a.x + i * a.x_stride, first);
    if (flat && to) __builtin_memcpy(to, flat, static_cast<std::size_t>(bytes));
  }
}

void UnpackRowsRows(const UnpackRowsArgs& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t bytes = a.format.row_bytes();
  for (std::int64_t i = begin; i < end; ++i) {
    UnpackRow(a.format, a.flat ? a.flat + i * bytes : a.src.Row(a.first + i), a.y + i * a.y_stride);
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
