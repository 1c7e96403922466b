// Linears as checkpoints store them: the bits of docs/numerics.md section 3, and the distance of contract from
// truth.
#include "reference/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "model/float_formats.h"
#include "reference/testing/error_bounds.h"
#include "reference/testing/page_arithmetic.h"
#include "reference/testing/same_bits.h"
#include "reference/testing/test_inputs.h"
#include "reference/testing/test_linear.h"

namespace lockstep::reference {
namespace {

constexpr std::int64_t kRows = 2, kOut = 9;  // two tokens, so that a row that depends on another shows

// --- a matrix in one of the storage forms --------------------------------------------------------------------

enum class Storage { kBf16, kF16, kF32, kFp8Tiles32, kFp8Tiles128, kFp4Rows };

std::string NameOf(Storage storage) {
  switch (storage) {
    case Storage::kBf16:
      return "Bf16";
    case Storage::kF16:
      return "F16";
    case Storage::kF32:
      return "F32";
    case Storage::kFp8Tiles32:
      return "Fp8Tiles32";
    case Storage::kFp8Tiles128:
      return "Fp8Tiles128";
    case Storage::kFp4Rows:
      return "Fp4Rows";
  }
  return "";
}

struct StoredMatrix {
  TestLinear linear;
  std::int64_t in = 0;
  int block = 0;              // inputs a weight scale covers; 0: none
  std::vector<float> values;  // [out][in], codes if there are scales
  std::vector<float> scales;  // [out][ceil(in/block)]

  std::vector<float> Row(std::int64_t n) const {
    return {values.begin() + n * in, values.begin() + (n + 1) * in};
  }
  float Scale(std::int64_t n, std::int64_t k) const {
    return block ? scales[static_cast<std::size_t>(n * ((in + block - 1) / block) + k / block)] : 1.0f;
  }
};

StoredMatrix DrawDense(Storage storage, std::int64_t in, Shape shape, Random& random) {
  const DType dtype = storage == Storage::kBf16  ? DType::kBF16
                      : storage == Storage::kF16 ? DType::kF16
                                                 : DType::kF32;
  StoredMatrix m;
  m.in = in;
  for (std::int64_t n = 0; n < kOut; ++n) {
    const OperandFormat format = storage == Storage::kBf16 ? OperandFormat::kBf16 : OperandFormat::kFp16;
    const std::vector<float> row = DrawDot(shape, in, format, random).b;
    m.values.insert(m.values.end(), row.begin(), row.end());
  }
  m.linear = TestLinear::Dense(dtype, kOut, in, m.values);
  return m;
}

StoredMatrix DrawBlockScaled(Storage storage, std::int64_t in, Shape shape, Random& random) {
  const bool fp4 = storage == Storage::kFp4Rows;
  StoredMatrix m;
  m.in = in;
  m.block = storage == Storage::kFp8Tiles128 ? 128 : 32;
  const std::int64_t columns = (in + m.block - 1) / m.block,
                     scale_rows = fp4 ? kOut : (kOut + m.block - 1) / m.block;
  std::vector<std::uint8_t> codes, exponents;
  for (std::int64_t i = 0; i < kOut * in; ++i) {
    const bool last = i % in == in - 1;
    float value = shape == Shape::kLattice ? static_cast<float>(random.Integer(-2, 2))
                                           : static_cast<float>(random.Normal()) * 2;
    if (last) value = 2.0f;
    codes.push_back(fp4 ? FloatToE2M1(std::clamp(value, -6.0f, 6.0f)) : FloatToE4M3(value));
    m.values.push_back(fp4 ? E2M1ToFloat(codes.back()) : E4M3ToFloat(codes.back()));
  }
  for (std::int64_t i = 0; i < scale_rows * columns; ++i) {
    exponents.push_back(static_cast<std::uint8_t>(random.Integer(126, shape == Shape::kLattice ? 128 : 130)));
  }
  for (std::int64_t n = 0; n < kOut; ++n) {
    for (std::int64_t c = 0; c < columns; ++c) {
      m.scales.push_back(
          E8M0ToFloat(exponents[static_cast<std::size_t>((fp4 ? n : n / m.block) * columns + c)]));
    }
  }
  m.linear =
      fp4 ? TestLinear::Fp4(kOut, in, codes, exponents) : TestLinear::Fp8(m.block, kOut, in, codes, exponents);
  return m;
}

StoredMatrix Draw(Storage storage, std::int64_t in, Shape shape, Random& random) {
  const bool dense = storage == Storage::kBf16 || storage == Storage::kF16 || storage == Storage::kF32;
  return dense ? DrawDense(storage, in, shape, random) : DrawBlockScaled(storage, in, shape, random);
}

Matrix<float> DrawInput(std::int64_t in, Shape shape, Random& random) {
  Matrix<float> x(kRows, in);
  for (std::int64_t t = 0; t < kRows; ++t) {
    const std::vector<float> row = DrawDot(shape, in, OperandFormat::kBf16, random).a;
    std::copy(row.begin(), row.end(), x.row(t).data());
  }
  return x;
}

// --- the page ------------------------------------------------------------------------------------------------

struct QuantizedInput {
  std::vector<float> codes, scales;  // scale of input k: scales[k / block]
};

QuantizedInput ActQuant8(const std::vector<float>& x, int block) {
  QuantizedInput out;
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(block)) {
    const std::size_t end = std::min(x.size(), begin + static_cast<std::size_t>(block));
    float a = 1e-4f;
    for (std::size_t k = begin; k < end; ++k) a = std::max(a, std::fabs(x[k]));
    int exponent = 0;
    const float fraction = std::frexp(a * static_cast<float>(1.0 / 448.0), &exponent);
    const float s = std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
    out.scales.push_back(s);
    for (std::size_t k = begin; k < end; ++k) {
      out.codes.push_back(E4M3ToFloat(FloatToE4M3(std::clamp(x[k] / s, -448.0f, 448.0f))));
    }
  }
  return out;
}

// Output n of the page's FP8/FP4 rule.
float BlockScaledDot(Profile profile, const StoredMatrix& m, std::int64_t n, const std::vector<float>& x,
                     int activation_block, bool fake_quant) {
  const QuantizedInput q = fake_quant ? ActQuant8(x, activation_block) : QuantizedInput{x, {}};
  const OperandFormat format = fake_quant ? OperandFormat::kFp16 : OperandFormat::kBf16;
  const std::vector<float> w = m.Row(n);
  return page::FoldSegments(m.in, [&](std::int64_t begin, std::int64_t end) {
    float y = 0.0f;
    for (std::int64_t k = begin; k < end; k += m.block) {
      const auto first = static_cast<std::size_t>(k);
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(m.block, end - k));
      const float p = page::DotH(profile, page::Floats(q.codes).subspan(first, count),
                                 page::Floats(w).subspan(first, count), format);
      const float scale = fake_quant ? q.scales[first / static_cast<std::size_t>(activation_block)] : 1.0f;
      y = std::fma(p, scale * m.Scale(n, k), y);
    }
    return y;
  });
}

float PageDot(Profile profile, Storage storage, const StoredMatrix& m, std::int64_t n,
              const std::vector<float>& x, int activation_block, bool fake_quant) {
  switch (storage) {
    case Storage::kBf16:
      return page::DotHS(profile, x, m.Row(n), OperandFormat::kBf16);
    case Storage::kF16:
      return page::DotHS(profile, x, m.Row(n), OperandFormat::kFp16);
    case Storage::kF32:
      return page::DotF(x, m.Row(n));
    default:
      return BlockScaledDot(profile, m, n, x, activation_block, fake_quant);
  }
}

// --- tests ---------------------------------------------------------------------------------------------------

struct StoredCase {
  Profile profile;
  Storage storage;
};

class StoredLinearTest : public testing::TestWithParam<StoredCase> {
 protected:
  // Activation block of the models that store weights so: 32 for 32-tiles, 128 otherwise; FP4 occurs with both.
  std::vector<int> ActivationBlocks() const {
    if (GetParam().storage == Storage::kFp4Rows) return {32, 128};
    return {GetParam().storage == Storage::kFp8Tiles32 ? 32 : 128};
  }

  Options MakeOptions(bool fake_quant) const {
    Options options;
    options.numerics.profile = GetParam().profile;
    options.numerics.fake_quant = fake_quant;
    return options;
  }

  template <typename A>
  Matrix<typename A::Real> Apply(const StoredMatrix& m, const Matrix<float>& x, int activation_block,
                                 bool fake_quant) const {
    LinearEngine<A> engine(MakeOptions(fake_quant), activation_block);
    return engine.Apply(m.linear.weight(), x.cast<typename A::Real>(), LinearOutput::kFp32);
  }

  // Bound on contract minus truth of output n, relative to sum |x_k w_k|.
  double Bound(const StoredMatrix& m, bool block_scaled) const {
    if (GetParam().storage == Storage::kF32) return Gamma(DepthF(m.in));
    if (!block_scaled) return LinearBound(GetParam().profile, m.in);
    const std::int64_t longest = ((m.in + 127) / 128 + 3) / 4 * 128;
    const double chain = ChainBound(GetParam().profile, m.block);
    return chain + Gamma(static_cast<double>(longest / m.block + 2)) * (1 + chain);
  }

  // Outputs further from truth than the bound. Sizes come from what truth multiplies: fake-quantized inputs if
  // asked.
  int Violations(const StoredMatrix& m, const Matrix<float>& x, int activation_block, bool fake_quant,
                 const Matrix<float>& got) const {
    const Matrix<double> truth = Apply<Truth>(m, x, activation_block, fake_quant);
    int violations = 0;
    for (std::int64_t t = 0; t < kRows; ++t) {
      std::vector<float> row(x.row(t).data(), x.row(t).data() + m.in);
      if (fake_quant && m.block) {
        const QuantizedInput q = ActQuant8(row, activation_block);
        for (std::size_t k = 0; k < row.size(); ++k)
          row[k] = q.codes[k] * q.scales[k / static_cast<std::size_t>(activation_block)];
      }
      for (std::int64_t n = 0; n < kOut; ++n) {
        double size = 0;
        for (std::int64_t k = 0; k < m.in; ++k) {
          size += std::fabs(static_cast<double>(row[static_cast<std::size_t>(k)]) *
                            m.values[static_cast<std::size_t>(n * m.in + k)] * m.Scale(n, k));
        }
        violations += std::fabs(got(t, n) - truth(t, n)) > Bound(m, m.block > 0) * size;
      }
    }
    return violations;
  }
};

constexpr std::int64_t kLengths[] = {32, 96, 128, 160, 384, 640, 1280};

TEST_P(StoredLinearTest, HasTheBitsOfThePage) {
  Random random(31);
  for (const std::int64_t in : kLengths) {
    for (const Shape shape : {Shape::kNormal, Shape::kWide}) {
      const StoredMatrix m = Draw(GetParam().storage, in, shape, random);
      const Matrix<float> x = DrawInput(in, shape, random);
      for (const int activation_block : ActivationBlocks()) {
        for (const bool fake_quant : {true, false}) {
          const Matrix<float> got = Apply<Contract>(m, x, activation_block, fake_quant);
          std::vector<float> expected;
          for (std::int64_t t = 0; t < kRows; ++t) {
            const std::vector<float> row(x.row(t).data(), x.row(t).data() + in);
            for (std::int64_t n = 0; n < kOut; ++n) {
              expected.push_back(
                  PageDot(GetParam().profile, GetParam().storage, m, n, row, activation_block, fake_quant));
            }
          }
          ASSERT_TRUE(SameBits({got.data(), expected.size()}, expected))
              << "in " << in << ", fake quant " << fake_quant;
        }
      }
    }
  }
}

TEST_P(StoredLinearTest, LatticeIsExactInContractAndTruth) {
  Random random(32);
  for (const std::int64_t in : kLengths) {
    const StoredMatrix m = Draw(GetParam().storage, in, Shape::kLattice, random);
    const Matrix<float> x = DrawInput(in, Shape::kLattice, random);
    for (const int activation_block : ActivationBlocks()) {
      for (const bool fake_quant : {true, false}) {
        const Matrix<float> got = Apply<Contract>(m, x, activation_block, fake_quant);
        ASSERT_EQ(got.cast<double>(), Apply<Truth>(m, x, activation_block, fake_quant)) << "in " << in;
      }
    }
  }
}

TEST_P(StoredLinearTest, TruthWithinBoundAndALostProductIsNot) {
  Random random(33);
  for (const std::int64_t in : kLengths) {
    for (const Shape shape : {Shape::kNormal, Shape::kWide, Shape::kCancelling}) {
      const StoredMatrix m = Draw(GetParam().storage, in, shape, random);
      const Matrix<float> x = DrawInput(in, shape, random);
      for (const int activation_block : ActivationBlocks()) {
        for (const bool fake_quant : {true, false}) {
          ASSERT_EQ(Violations(m, x, activation_block, fake_quant,
                               Apply<Contract>(m, x, activation_block, fake_quant)),
                    0)
              << NameOf(shape) << ", in " << in << ", fake quant " << fake_quant;
          if (shape == Shape::kWide) continue;  // the last product may be far below the sum
          Matrix<float> lost = x;
          lost.col(in - 1).setZero();
          const Matrix<float> without = Apply<Contract>(m, lost, activation_block, fake_quant);
          ASSERT_EQ(Violations(m, x, activation_block, fake_quant, without), kRows * kOut)
              << NameOf(shape) << ", in " << in << ", fake quant " << fake_quant;
        }
      }
    }
  }
}

std::vector<StoredCase> StoredCases() {
  std::vector<StoredCase> cases;
  for (const Profile profile :
       {Profile::kSm90, Profile::kSm90K8, Profile::kSm80, Profile::kSm70, Profile::kSm70Jit, Profile::kFma}) {
    for (const Storage storage : {Storage::kBf16, Storage::kF16, Storage::kF32, Storage::kFp8Tiles32,
                                  Storage::kFp8Tiles128, Storage::kFp4Rows}) {
      cases.push_back({profile, storage});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, StoredLinearTest, testing::ValuesIn(StoredCases()), [](const auto& param) {
  return std::string(lockstep::NameOf(param.param.profile)) + NameOf(param.param.storage);
});

// --- what is around the product ------------------------------------------------------------------------------

TEST(LinearOutputTest, Bf16OutputIsTheFp32OutputRounded) {
  Random random(34);
  const StoredMatrix m = Draw(Storage::kBf16, 384, Shape::kNormal, random);
  const Matrix<float> x = DrawInput(384, Shape::kNormal, random);
  LinearEngine<Contract> engine(Options{}, 128);
  const Matrix<float> wide = engine.Apply(m.linear.weight(), x, LinearOutput::kFp32);
  const Matrix<float> narrow = engine.Apply(m.linear.weight(), x);
  for (Eigen::Index i = 0; i < wide.size(); ++i) EXPECT_EQ(narrow.data()[i], RoundToBF16(wide.data()[i]));
}

// wo_a: FP8 weights times scale become bf16 once, the input is not quantized, and the product is that of a BF16
// linear.
TEST(LinearOutputTest, WithoutInputQuantizerFp8WeightsAreABf16Linear) {
  Random random(35);
  const StoredMatrix m = Draw(Storage::kFp8Tiles32, 160, Shape::kNormal, random);
  const Matrix<float> x = DrawInput(160, Shape::kNormal, random);
  Options options;
  LinearEngine<Contract> engine(options, 32);
  const Matrix<float> got = engine.Apply(m.linear.weight(), x, LinearOutput::kFp32, /*quantize_input=*/false);
  for (std::int64_t t = 0; t < kRows; ++t) {
    const std::vector<float> row(x.row(t).data(), x.row(t).data() + 160);
    for (std::int64_t n = 0; n < kOut; ++n) {
      std::vector<float> w = m.Row(n);
      for (std::int64_t k = 0; k < 160; ++k) w[static_cast<std::size_t>(k)] *= m.Scale(n, k);
      EXPECT_EQ(got(t, n), page::DotHS(options.numerics.profile, row, w, OperandFormat::kBf16));
    }
  }
}

TEST(LinearOutputTest, RowsOfAGroupedMatrixAreItsOwn) {
  Random random(36);
  StoredMatrix m = Draw(Storage::kFp8Tiles32, 64, Shape::kNormal, random);
  const Matrix<float> x = DrawInput(64, Shape::kNormal, random);
  const Matrix<float> whole = LinearEngine<Contract>(Options{}, 32).Apply(m.linear.weight(), x);
  m.linear.weight().row_begin = 4;
  m.linear.weight().out_features = 3;
  const Matrix<float> part = LinearEngine<Contract>(Options{}, 32).Apply(m.linear.weight(), x);
  EXPECT_EQ(part, whole.middleCols(4, 3));
}

TEST(LinearCacheTest, EvictedMatricesAreReadAgain) {
  Random random(37);
  StoredMatrix one = Draw(Storage::kBf16, 128, Shape::kNormal, random),
               two = Draw(Storage::kBf16, 128, Shape::kNormal, random);
  two.linear.weight().name = "another";
  const Matrix<float> x = DrawInput(128, Shape::kNormal, random);
  Options options;
  options.weight_cache_bytes = 1;
  LinearEngine<Contract> small(options, 128), large(Options{}, 128);
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_EQ(small.Apply(one.linear.weight(), x), large.Apply(one.linear.weight(), x));
    EXPECT_EQ(small.Apply(two.linear.weight(), x), large.Apply(two.linear.weight(), x));
  }
}

}  // namespace
}  // namespace lockstep::reference
