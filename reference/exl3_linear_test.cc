// EXL3 linears: the bits of docs/numerics.md section 4, and the distance of contract from truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "model/float_formats.h"
#include "reference/exl3_decode.h"
#include "reference/linear.h"
#include "reference/testing/error_bounds.h"
#include "reference/testing/page_arithmetic.h"
#include "reference/testing/same_bits.h"
#include "reference/testing/test_inputs.h"
#include "reference/testing/test_linear.h"

namespace lockstep::reference {
namespace {

constexpr double kRootOf128 = 11.313708498984761;
constexpr double kUnitFp16 = 0x1p-11;

// --- a random matrix -----------------------------------------------------------------------------------------

enum class Scales { kAnyMagnitude, kSigns };

TestLinear DrawExl3(Codebook codebook, int bits_x2, std::int64_t in, std::int64_t out, Scales scales,
                    Random& random) {
  const std::int64_t in_padded = (in + 127) / 128 * 128, out_padded = (out + 127) / 128 * 128;
  TestLinear::Exl3 parts{.codebook = codebook, .bits_x2 = bits_x2, .out = out, .in = in};
  for (std::int64_t i = in_padded / 16 * out_padded / 16 * 4 * bits_x2; i > 0; --i) {
    parts.words.push_back(static_cast<std::uint32_t>(random.Bits()));
  }
  const auto draw = [&] {
    const float sign = random.Integer(0, 1) ? 1.0f : -1.0f;
    return scales == Scales::kSigns ? sign : RoundToF16(sign * static_cast<float>(0.25 + random.Uniform()));
  };
  for (std::int64_t i = 0; i < in_padded; ++i) parts.suh.push_back(draw());
  for (std::int64_t j = 0; j < out_padded; ++j) parts.svh.push_back(draw());
  if (scales == Scales::kAnyMagnitude) {
    for (std::int64_t j = 0; j < out_padded; ++j) parts.bias.push_back(draw());
  }
  return TestLinear::FromExl3(parts);
}

std::vector<float> DrawInput(std::int64_t in, Random& random) {
  std::vector<float> x;
  for (std::int64_t k = 0; k < in; ++k) x.push_back(RoundToBF16(static_cast<float>(random.HeavyTailed())));
  return x;
}

// Weights of output n: mul1 byte sums, and the fp16 weights of any codebook.
struct Columns {
  std::vector<std::vector<int>> byte_sums;
  std::vector<std::vector<float>> weights;
};

Columns Decode(const Exl3Matrix& matrix) {
  Columns columns;
  columns.byte_sums.assign(static_cast<std::size_t>(matrix.out_padded),
                           std::vector<int>(static_cast<std::size_t>(matrix.in_padded)));
  columns.weights.assign(static_cast<std::size_t>(matrix.out_padded),
                         std::vector<float>(static_cast<std::size_t>(matrix.in_padded)));
  ForEachState(matrix, [&](std::int64_t k, std::int64_t n, std::uint32_t state) {
    columns.byte_sums[static_cast<std::size_t>(n)][static_cast<std::size_t>(k)] = Mul1ByteSum(state);
    columns.weights[static_cast<std::size_t>(n)][static_cast<std::size_t>(k)] =
        F16ToFloat(DecodeState(matrix.codebook, state));
  });
  return columns;
}

// --- the page ------------------------------------------------------------------------------------------------

enum class Spoil { kNothing, kLoseLargestProduct, kSwapSegments };

template <typename Real>
void Hadamard(std::vector<Real>& x, Real scale) {
  for (std::size_t begin = 0; begin < x.size(); begin += 128) {
    for (std::size_t stride = 1; stride < 128; stride *= 2) {
      for (std::size_t i = begin; i < begin + 128; ++i) {
        if ((i - begin) & stride) continue;
        const Real a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
    for (std::size_t i = begin; i < begin + 128; ++i) x[i] = x[i] * scale;
  }
}

constexpr float kScale = static_cast<float>(1.0 / kRootOf128);

std::vector<float> PageOutput(const LinearWeight& linear, const Columns& columns, const std::vector<float>& x,
                              const NumericsOptions& numerics, Spoil spoil = Spoil::kNothing) {
  const Exl3Matrix& matrix = linear.exl3;
  const int limit = matrix.codebook == Codebook::kMul1 ? ActQuantLimit(numerics.act_quant, matrix.bits_x2) : 0;
  std::vector<float> t(static_cast<std::size_t>(matrix.in_padded), 0.0f);
  for (std::size_t k = 0; k < x.size(); ++k) t[k] = x[k] * matrix.InputScale(static_cast<std::int64_t>(k));
  const auto to_fp16 = [&] {
    for (float& value : t) value = RoundToF16(value);
  };
  if (limit == 0) to_fp16();
  Hadamard(t, kScale);
  if (limit == 0) to_fp16();
  if (spoil == Spoil::kSwapSegments) std::rotate(t.begin(), t.begin() + 128, t.end());
  if (spoil == Spoil::kLoseLargestProduct) {
    *std::max_element(t.begin(), t.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }) = 0;
  }

  std::vector<float> v;
  for (std::size_t n = 0; n < columns.weights.size(); ++n) {
    v.push_back(limit > 0 ? page::DotI(t, columns.byte_sums[n], limit)
                          : page::DotHS(numerics.profile, t, columns.weights[n], OperandFormat::kFp16));
  }
  Hadamard(v, kScale);
  v.resize(static_cast<std::size_t>(linear.out_features));
  for (std::size_t n = 0; n < v.size(); ++n) {
    v[n] = v[n] * matrix.OutputScale(static_cast<std::int64_t>(n));
    if (!matrix.bias.empty()) v[n] = v[n] + matrix.bias.Float(static_cast<std::int64_t>(n));
  }
  return v;
}

// --- cases ---------------------------------------------------------------------------------------------------

struct Exl3Case {
  Codebook codebook;
  int bits_x2;
  ActQuant act_quant;
  Profile profile;
};

std::string NameOfCase(const Exl3Case& c) {
  std::string name(NameOf(c.codebook));
  if (name == "3inst") name = "ThreeInst";
  return name + "Bits" + std::to_string(c.bits_x2) + "Halves" + std::string(NameOf(c.act_quant)) +
         std::string(NameOf(c.profile));
}

std::vector<Exl3Case> Exl3Cases() {
  std::vector<Exl3Case> cases;
  for (const int bits_x2 : {4, 5, 6, 12}) {
    for (const ActQuant act_quant : {ActQuant::kInt8, ActQuant::kInt16, ActQuant::kAuto}) {
      cases.push_back({Codebook::kMul1, bits_x2, act_quant, Profile::kSm90});
    }
  }
  for (const Profile profile :
       {Profile::kSm90, Profile::kSm80, Profile::kSm70, Profile::kSm70Jit, Profile::kFma}) {
    cases.push_back({Codebook::kMul1, 6, ActQuant::kNone, profile});
    cases.push_back({Codebook::kMcg, 6, ActQuant::kAuto, profile});
    cases.push_back({Codebook::k3inst, 8, ActQuant::kAuto, profile});
  }
  return cases;
}

class Exl3LinearTest : public testing::TestWithParam<Exl3Case> {
 protected:
  Options MakeOptions() const {
    Options options;
    options.numerics.profile = GetParam().profile;
    options.numerics.act_quant = GetParam().act_quant;
    return options;
  }

  template <typename A>
  std::vector<typename A::Real> Apply(const LinearWeight& linear, const std::vector<float>& x) const {
    LinearEngine<A> engine(MakeOptions(), 128);
    const Eigen::Map<const Matrix<float>> row(x.data(), 1, static_cast<Eigen::Index>(x.size()));
    const Matrix<typename A::Real> y = engine.Apply(linear, row.cast<typename A::Real>(), LinearOutput::kFp32);
    return {y.data(), y.data() + y.size()};
  }

  int Limit() const {
    return GetParam().codebook == Codebook::kMul1 ? ActQuantLimit(GetParam().act_quant, GetParam().bits_x2) : 0;
  }
};

struct Size {
  std::int64_t in, out;
};
constexpr Size kSizes[] = {{100, 128}, {384, 200}, {640, 128}};

TEST_P(Exl3LinearTest, HasTheBitsOfThePage) {
  Random random(41);
  for (const Size size : kSizes) {
    const TestLinear linear =
        DrawExl3(GetParam().codebook, GetParam().bits_x2, size.in, size.out, Scales::kAnyMagnitude, random);
    const Columns columns = Decode(linear.weight().exl3);
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<float> x = DrawInput(size.in, random);
      if (repeat == 2) std::fill(x.begin(), x.begin() + 100, 0.0f);  // a block that may be all zero
      ASSERT_TRUE(SameBits(Apply<Contract>(linear.weight(), x),
                           PageOutput(linear.weight(), columns, x, MakeOptions().numerics)))
          << size.in << " to " << size.out;
    }
  }
}

// What the bound on one element of v = t W needs, from the exact transformed input.
struct ExactInput {
  std::vector<double> t;
  double norm = 0;  // of t
};

ExactInput TransformExactly(const Exl3Matrix& matrix, const std::vector<float>& x) {
  ExactInput out;
  out.t.assign(static_cast<std::size_t>(matrix.in_padded), 0.0);
  for (std::size_t k = 0; k < x.size(); ++k)
    out.t[k] = static_cast<double>(x[k]) * matrix.InputScale(static_cast<std::int64_t>(k));
  Hadamard(out.t, 1.0 / kRootOf128);
  for (const double value : out.t) out.norm += value * value;
  out.norm = std::sqrt(out.norm);
  return out;
}

double NormOf(const std::vector<float>& w) {
  double sum = 0;
  for (const float value : w) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// Family H: both fp16 roundings and the fp32 transform (orthogonal stages: 7 additions, input scale,
// 1/sqrt(128) and its own rounding) move t by at most this part of its norm; subnormal fp16 results by 2^-25 an
// element. Cauchy-Schwarz brings it through W.
double BoundH(Profile profile, const ExactInput& input, const std::vector<float>& w) {
  const double moved = (2 * kUnitFp16 * (1 + kUnitFp16) + Gamma(10)) * input.norm +
                       2 * 0x1p-25 * std::sqrt(static_cast<double>(input.t.size()));
  double size = 0;
  for (std::size_t k = 0; k < w.size(); ++k) size += std::fabs(input.t[k] * w[k]);
  const double chain = LinearBound(profile, static_cast<std::int64_t>(w.size()));
  return moved * NormOf(w) * (1 + chain) + chain * size;
}

// Family I, per element k of t with code q and scale s:
//   * the code may differ by one where t Q/a lies within the fp32 error of a rounding boundary: one step s of
//   the quantizer;
//   * q s itself is off by the relative error of s;
//   * the contract leaves out the fp16 rounding of the weight;
// then the fma chain over the blocks of a segment (each block sum rounded once), the fold, and the affine
// constant.
double BoundI(const ExactInput& input, const std::vector<int>& byte_sums, const std::vector<float>& w,
              int limit) {
  const double t_error = Gamma(10) * input.norm;
  double bound = 0, size = 0;
  for (std::size_t begin = 0; begin < w.size(); begin += 128) {
    double a = 0;
    for (std::size_t k = begin; k < begin + 128; ++k) a = std::max(a, std::fabs(input.t[k]));
    const double s = a / limit;
    for (std::size_t k = begin; k < begin + 128; ++k) {
      const double argument = input.t[k] / s, code = std::nearbyint(argument);
      const double argument_error = (2 * t_error + Gamma(3) * std::fabs(input.t[k])) / s;
      const double flip = 0.5 - std::fabs(argument - code) <= argument_error ? s : 0.0;
      const double affine = (1774.0 * (byte_sums[k] - 510) - 476.0) / 262144.0;
      bound += (flip + std::fabs(code) * (t_error / limit + Gamma(2) * s)) * std::fabs(affine);
      bound += std::fabs(code * s) * std::fabs(affine - w[k]);
      size += std::fabs(code * s) * (std::fabs(1774.0 * (byte_sums[k] - 510)) + 476.0) / 262144.0;
    }
  }
  const auto blocks = static_cast<double>(w.size() / 128);
  return bound + Gamma(std::ceil(blocks / 4) + 1 + 2 + 3) * (size + bound);
}

// Square root of the sum of squares of got - truth over a 128-block of outputs: svh holds signs, so the output
// transform keeps norms. Returns the largest ratio of that distance to its bound over the blocks.
double WorstRatio(const std::vector<float>& got, const std::vector<double>& truth,
                  const std::vector<double>& bound_N) {
  double worst = 0;
  for (std::size_t begin = 0; begin < truth.size(); begin += 128) {
    double distance = 0, bound = 0, size = 0;
    for (std::size_t n = begin; n < begin + 128; ++n) {
      distance += (got[n] - truth[n]) * (got[n] - truth[n]);
      size += truth[n] * truth[n];
      bound += bound_N[n] * bound_N[n];
    }
    const double allowed = std::sqrt(bound) + Gamma(10) * (std::sqrt(size) + std::sqrt(bound));
    worst = std::max(worst, std::sqrt(distance) / allowed);
  }
  return worst;
}

TEST_P(Exl3LinearTest, TruthWithinBoundAndASpoiledProductIsNot) {
  Random random(42);
  for (const Size size : {Size{128, 128}, Size{640, 256}}) {
    const TestLinear linear =
        DrawExl3(GetParam().codebook, GetParam().bits_x2, size.in, size.out, Scales::kSigns, random);
    const Columns columns = Decode(linear.weight().exl3);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::vector<float> x = DrawInput(size.in, random);
      const ExactInput input = TransformExactly(linear.weight().exl3, x);
      std::vector<double> bound_N;
      for (std::size_t n = 0; n < columns.weights.size(); ++n) {
        bound_N.push_back(Limit() > 0 ? BoundI(input, columns.byte_sums[n], columns.weights[n], Limit())
                                      : BoundH(GetParam().profile, input, columns.weights[n]));
      }
      const std::vector<double> truth = Apply<Truth>(linear.weight(), x);
      EXPECT_LE(WorstRatio(Apply<Contract>(linear.weight(), x), truth, bound_N), 1.0) << size.in;
      const auto spoiled = [&](Spoil spoil) {
        return WorstRatio(PageOutput(linear.weight(), columns, x, MakeOptions().numerics, spoil), truth,
                          bound_N);
      };
      EXPECT_GT(spoiled(Spoil::kLoseLargestProduct), 1.0) << size.in;
      if (size.in > 128) {
        EXPECT_GT(spoiled(Spoil::kSwapSegments), 1.0);
      }
    }
  }
}

// How far int8 and int16 move a result: at most half a step of the quantizer an element.
TEST_P(Exl3LinearTest, QuantizationMovesTruthByAtMostHalfAStep) {
  if (Limit() == 0) return;
  Random random(43);
  const TestLinear linear = DrawExl3(GetParam().codebook, GetParam().bits_x2, 384, 128, Scales::kSigns, random);
  const Columns columns = Decode(linear.weight().exl3);
  const std::vector<float> x = DrawInput(384, random);
  const ExactInput input = TransformExactly(linear.weight().exl3, x);
  std::vector<double> bound_N(128, 0.0);
  for (std::size_t begin = 0; begin < 384; begin += 128) {
    double a = 0;
    for (std::size_t k = begin; k < begin + 128; ++k) a = std::max(a, std::fabs(input.t[k]));
    for (std::size_t n = 0; n < 128; ++n) {
      for (std::size_t k = begin; k < begin + 128; ++k)
        bound_N[n] += a / Limit() / 2 * std::fabs(columns.weights[n][k]);
    }
  }
  Options unquantized = MakeOptions();
  unquantized.numerics.act_quant = ActQuant::kNone;
  const Eigen::Map<const Matrix<float>> row(x.data(), 1, 384);
  const Matrix<double> exact =
      LinearEngine<Truth>(unquantized, 128).Apply(linear.weight(), row.cast<double>(), LinearOutput::kFp32);
  const std::vector<double> quantized = Apply<Truth>(linear.weight(), x);
  EXPECT_LE(WorstRatio({quantized.begin(), quantized.end()}, {exact.data(), exact.data() + 128}, bound_N), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Cases, Exl3LinearTest, testing::ValuesIn(Exl3Cases()),
                         [](const auto& param) { return NameOfCase(param.param); });

TEST(Exl3LinearProfileTest, FamilyIHasOneSetOfBitsForAllProfiles) {
  Random random(44);
  const TestLinear linear = DrawExl3(Codebook::kMul1, 6, 384, 128, Scales::kAnyMagnitude, random);
  const std::vector<float> x = DrawInput(384, random);
  const Eigen::Map<const Matrix<float>> row(x.data(), 1, 384);
  Matrix<float> first;
  for (const Profile profile : {Profile::kSm90, Profile::kSm90K8, Profile::kSm80, Profile::kSm75,
                                Profile::kSm70, Profile::kSm70Jit, Profile::kFma}) {
    Options options;
    options.numerics.profile = profile;
    const Matrix<float> y =
        LinearEngine<Contract>(options, 128).Apply(linear.weight(), row, LinearOutput::kFp32);
    if (first.size() == 0) first = y;
    EXPECT_TRUE(SameBits({y.data(), 128}, {first.data(), 128})) << NameOf(profile);
  }
}

TEST(Exl3LinearProfileTest, AutoIsInt8UpToFourBitsAndInt16Above) {
  for (const int bits_x2 : {2, 3, 4, 5, 6, 7, 8})
    EXPECT_EQ(ActQuantLimit(ActQuant::kAuto, bits_x2), 127) << bits_x2;
  for (const int bits_x2 : {9, 10, 12, 14, 16})
    EXPECT_EQ(ActQuantLimit(ActQuant::kAuto, bits_x2), 32512) << bits_x2;
}

}  // namespace
}  // namespace lockstep::reference
