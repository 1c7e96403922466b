// Inputs before and outputs after the matrix product. Compiled once per instruction set.
#include "kernels/contract/segments.h"
#include "kernels/contract/vec.h"
#include "kernels/linear/hadamard.h"
#include "kernels/linear/linear_simd.h"
#include "kernels/linear/linear_steps.h"
#include "kernels/linear/stored_exponents.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;
using Kind = LinearSpec::Kind;

constexpr int kVectors = 8;                             // of 16 lanes in a block
constexpr float kHadamardScale = 0.08838834764831845f;  // 1/sqrt(128)
constexpr float kMul1Step = 1774.0f * 0x1p-18f;
constexpr float kMul1Offset = 476.0f * 0x1p-18f;
constexpr float kSmallestBlock = 0x1p-100f;
constexpr float kLargestF16 = 65504.0f;

const float* FloatsAt(const LinearWork& work, std::int64_t offset, std::int64_t index) {
  return reinterpret_cast<const float*>(work.blob + offset) + index;
}

int CountIn(std::int64_t n, std::int64_t begin, int most) {
  return n <= begin ? 0 : n - begin < most ? static_cast<int>(n - begin) : most;
}

// x[0, n) widened, zeros beyond.
LOCKSTEP_INLINE void LoadBlock(const std::uint16_t* x, int n, F32x16 (&t)[kVectors]) {
  for (int v = 0; v < kVectors; ++v) {
    const int count = CountIn(n, 16 * v, 16);
    t[v] = count == 16 ? LoadBF16(x + 16 * v) : count > 0 ? LoadBF16N(x + 16 * v, count) : F32x16(0.0f);
  }
}

LOCKSTEP_INLINE float MaxAbs(const F32x16* t, int vectors) {
  F32x16 largest(0.0f);
  for (int v = 0; v < vectors; ++v) largest = Max(largest, Abs(t[v]));
  float lanes[16];
  Store(largest, lanes);
  float result = 0.0f;
  for (float lane : lanes) result = Max(lane, result);
  return result;
}

// Rounds to fp16. A value beyond it becomes 0; false if there was one.
LOCKSTEP_INLINE bool RoundBlockToF16(F32x16 (&t)[kVectors]) {
  bool fits = true;
  for (int v = 0; v < kVectors; ++v) {
    t[v] = RoundToF16(t[v]);
    const Mask16 finite = LessEqual(Abs(t[v]), F32x16(kLargestF16));
    fits = fits && BitsOf(finite) == 0xffffu;
    t[v] = Select(finite, t[v], F32x16(0.0f));
  }
  return fits;
}

// t = x * suh; zeros beyond in_features.
LOCKSTEP_INLINE void LoadScaled(const LinearWork& work, const std::uint16_t* x, std::int64_t begin,
                                F32x16 (&t)[kVectors]) {
  const int n = CountIn(work.spec->in_features, begin, static_cast<int>(kLinearBlock));
  LoadBlock(x + begin, n, t);
  const float* suh = FloatsAt(work, work.spec->input_scale, begin);
  for (int v = 0; v < kVectors; ++v) {
    t[v] = Select(FirstLanes(CountIn(n, 16 * v, 16)), Mul(t[v], Load(suh + 16 * v)), F32x16(0.0f));
  }
}

LOCKSTEP_INLINE void ScaledButterfly(F32x16 (&t)[kVectors]) {
  Butterfly128(t);
  for (int v = 0; v < kVectors; ++v) t[v] = Mul(t[v], F32x16(kHadamardScale));
}

// --- family I ------------------------------------------------------------------------------------------------

// 16 codes of a tile from input order to tile order, as pairs.
LOCKSTEP_INLINE void StoreTileOrder(I32x16 codes, std::int16_t* out) {
  alignas(32) std::int16_t natural[16];
  StoreI16(codes, natural);
  std::int32_t pairs[8], ordered[8];
  std::memcpy(pairs, natural, sizeof(pairs));
  for (int i = 0; i < 8; ++i) ordered[i] = pairs[i / 2 + 4 * (i % 2)];
  std::memcpy(out, ordered, sizeof(ordered));
}

// Pairs of codes (a, b) as bytes (a, a, b, b).
void SplatCodes(const std::int16_t* codes, std::int32_t* splat) {
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t a = static_cast<std::uint8_t>(codes[2 * i]),
                        b = static_cast<std::uint8_t>(codes[2 * i + 1]);
    splat[i] = static_cast<std::int32_t>(a * 0x101u + b * 0x1010000u);
  }
}

void QuantizeBlock(const LinearWork& work, std::int64_t row, std::int64_t block, const F32x16 (&t)[kVectors]) {
  const std::int64_t index = block * work.rows + row;
  std::int16_t* codes = work.in.codes + index * kLinearBlock;
  const float limit = static_cast<float>(work.spec->act_limit);
  const float largest = MaxAbs(t, kVectors);
  const bool zero = largest < kSmallestBlock;
  const F32x16 inverse(zero ? 0.0f : Div(limit, largest));
  I32x16 sum(0);
  for (int v = 0; v < kVectors; ++v) {
    const F32x16 scaled = zero ? F32x16(0.0f) : Mul(t[v], inverse);
    const I32x16 q = RoundToInt(Max(Min(scaled, F32x16(limit)), F32x16(-limit)));
    sum += q;
    StoreTileOrder(q, codes + 16 * v);
  }
  std::int32_t lanes[16], total = 0;
  StoreI32(sum, lanes);
  for (std::int32_t lane : lanes) total += lane;
  work.in.code_sum[index] = total;
  work.in.scale[index] = zero ? 0.0f : Div(largest, limit);
  if (work.in.splat) SplatCodes(codes, work.in.splat + index * (kLinearBlock / 2));
}

// --- families H and F ----------------------------------------------------------------------------------------

void StoreValues(const LinearWork& work, std::int64_t row, std::int64_t block, const F32x16 (&t)[kVectors],
                 int smallest_exponent) {
  const std::int64_t padded = PrepareBlocks(*work.spec) * kLinearBlock;
  const std::int64_t begin = row * padded + block * kLinearBlock;
  for (int v = 0; v < kVectors; ++v) Store(t[v], work.in.values + begin + 16 * v);
  if (work.in.exponents == nullptr) return;
  std::int16_t* exponents = reinterpret_cast<std::int16_t*>(work.in.exponents) + begin;
  for (int v = 0; v < kVectors; ++v) StoreI16(StoredExponents(t[v], smallest_exponent), exponents + 16 * v);
}

// 2^ceil(log2(x)) on the bit pattern.
float PowerOfTwoAtLeast(float x) {
  const std::int32_t bits = BitsOf(x);
  return FloatOf(((bits >> 23) + ((bits & 0x7fffff) != 0 ? 1 : 0)) << 23);
}

// Nearest E4M3 value, ties to even, of |x| <= 448.
LOCKSTEP_INLINE F32x16 RoundToE4M3(F32x16 x) {
  const I32x16 sign = BitsOf(x) & I32x16(INT32_MIN);
  const F32x16 a = Abs(x);
  const I32x16 bits = BitsOf(a);
  const F32x16 normal = FloatOf((bits + I32x16(0x7ffff) + ((bits >> 20) & I32x16(1))) & I32x16(~0xfffff));
  const F32x16 small =
      Sub(Add(a, F32x16(0x1p14f)), F32x16(0x1p14f));  // below 2^-6 the step is 2^-9, the units digit of 2^14
  return FloatOf(BitsOf(Select(Less(a, F32x16(0x1p-6f)), small, normal)) | sign);
}

// FP8 codes as values, and their scales.
void QuantizeToFp8(const LinearWork& work, std::int64_t row, std::int64_t block, F32x16 (&t)[kVectors]) {
  const std::int64_t size = work.spec->activation_block;
  const std::int64_t scales = PrepareBlocks(*work.spec) * kLinearBlock / size;
  float* scale_out = work.in.scale + row * scales + block * kLinearBlock / size;
  const int vectors = static_cast<int>(size / 16);
  for (int begin = 0; begin < kVectors; begin += vectors) {
    const float largest = Max(MaxAbs(t + begin, vectors), 1e-4f);
    const float scale = PowerOfTwoAtLeast(Mul(largest, static_cast<float>(1.0 / 448.0)));
    *scale_out++ = scale;
    for (int v = begin; v < begin + vectors; ++v) {
      const F32x16 scaled = Div(t[v], F32x16(scale));
      t[v] = RoundToE4M3(Max(Min(scaled, F32x16(448.0f)), F32x16(-448.0f)));
    }
  }
}

bool PrepareTrellisBlock(const LinearWork& work, const std::uint16_t* x, std::int64_t row, std::int64_t block) {
  F32x16 t[kVectors];
  LoadScaled(work, x, block * kLinearBlock, t);
  if (work.spec->act_limit > 0) {
    ScaledButterfly(t);
    QuantizeBlock(work, row, block, t);
    return true;
  }
  bool fits = RoundBlockToF16(t);
  ScaledButterfly(t);
  fits = RoundBlockToF16(t) && fits;
  StoreValues(work, row, block, t, kSmallestF16Exponent);
  return fits;
}

bool PrepareStoredBlock(const LinearWork& work, const std::uint16_t* x, std::int64_t row, std::int64_t block) {
  const std::int64_t begin = block * kLinearBlock;
  F32x16 t[kVectors];
  LoadBlock(x + begin, CountIn(work.spec->in_features, begin, static_cast<int>(kLinearBlock)), t);
  bool fits = true, fp16 = false;
  if (work.spec->kind == Kind::kF16) {
    fits = RoundBlockToF16(t);
    fp16 = true;
  } else if (work.spec->activation_block > 0) {
    QuantizeToFp8(work, row, block, t);
    fp16 = true;
  }
  StoreValues(work, row, block, t, fp16 ? kSmallestF16Exponent : kSmallestBF16Exponent);
  return fits;
}

// --- outputs -------------------------------------------------------------------------------------------------

// z * 476/2^18 of a row: what the affine form adds to every output.
float Mul1Correction(const LinearWork& work, std::int64_t row) {
  const float z = SumOverSegments(work.spec->in_padded, [&](std::int64_t begin, std::int64_t end) {
    float sum = 0.0f;
    for (std::int64_t block = begin / kLinearBlock; block < end / kLinearBlock; ++block) {
      const std::int64_t index = block * work.rows + row;
      sum = Fma(static_cast<float>(work.in.code_sum[index]), work.in.scale[index], sum);
    }
    return sum;
  });
  return Mul(z, kMul1Offset);
}

LOCKSTEP_INLINE void TransformOutputs(const LinearWork& work, std::int64_t row, std::int64_t begin,
                                      F32x16 (&v)[kVectors]) {
  const LinearSpec& spec = *work.spec;
  if (spec.act_limit > 0) {
    const F32x16 correction(-Mul1Correction(work, row));
    for (int i = 0; i < kVectors; ++i) v[i] = Fma(v[i], F32x16(kMul1Step), correction);
  }
  ScaledButterfly(v);
  const float* svh = FloatsAt(work, spec.output_scale, begin);
  for (int i = 0; i < kVectors; ++i) v[i] = Mul(v[i], Load(svh + 16 * i));
  if (!spec.has_bias) return;
  const float* bias = FloatsAt(work, spec.bias, begin);
  for (int i = 0; i < kVectors; ++i) v[i] = Add(v[i], Load(bias + 16 * i));
}

}  // namespace

bool PrepareInputs(const LinearWork& work, const std::uint16_t* x, std::int64_t row, std::int64_t begin,
                   std::int64_t end) {
  const bool trellis = work.spec->kind == Kind::kExl3;
  bool fits = true;
  for (std::int64_t block = begin; block < end; ++block) {
    fits = (trellis ? PrepareTrellisBlock : PrepareStoredBlock)(work, x, row, block) && fits;
  }
  return fits;
}

void FinishOutputs(const LinearWork& work, std::int64_t row, std::int64_t block, std::uint16_t* y_bf16,
                   float* y_fp32) {
  const std::int64_t begin = block * kLinearBlock;
  const float* source = work.v + row * work.v_stride + begin;
  F32x16 v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = LoadN(source + 16 * i, CountIn(work.v_stride, begin + 16 * i, 16));
  if (work.spec->kind == Kind::kExl3) TransformOutputs(work, row, begin, v);
  for (int i = 0; i < kVectors; ++i) {
    const int count = CountIn(work.spec->out_features, begin + 16 * i, 16);
    if (count == 0) return;
    if (y_fp32) {
      StoreN(v[i], y_fp32 + begin + 16 * i, count);
    } else if (count == 16) {
      StoreBF16(v[i], y_bf16 + begin + 16 * i);
    } else {
      StoreBF16N(v[i], y_bf16 + begin + 16 * i, count);
    }
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
