// The linears of every instruction set, and of the CUDA device where there is one, against the reference in
// contract arithmetic, bit for bit.
#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/linear/linear_cases.h"
#include "kernels/testing/implementations.h"
#include "reference/linear.h"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;
using reference::LinearEngine;
using reference::LinearOutput;
using reference::Matrix;

constexpr int kActivationBlock = 32;

struct Setup {
  LinearCase weight;
  NumericsOptions numerics;
  bool quantize_input = true;
  int activation_block = kActivationBlock;
  std::vector<std::int64_t> rows = {1, 2, 3, 8, 17};
  std::vector<int> threads = {1, 3};
  std::uint64_t seed = 1;
};

std::string Describe(const Setup& setup, const Implementation& implementation, std::int64_t rows, int threads) {
  const LinearCase& w = setup.weight;
  return "kind " + std::to_string(static_cast<int>(w.kind)) + " " + std::to_string(w.out) + "x" +
         std::to_string(w.in) + " bits_x2 " + std::to_string(w.bits_x2) + " " +
         std::string(NameOf(w.codebook)) + " block " + std::to_string(w.block) + " recipe " +
         std::to_string(static_cast<int>(w.recipe)) + " " + std::string(NameOf(setup.numerics.profile)) + " " +
         std::string(NameOf(setup.numerics.act_quant)) + (setup.numerics.fake_quant ? "" : " no fake quant") +
         ", " + implementation.name() + ", rows " + std::to_string(rows) + ", threads " +
         std::to_string(threads);
}

// A weight with its blob, inputs, and what the reference makes of them.
class Problem {
 public:
  explicit Problem(const Setup& setup) : setup_(setup) {
    LinearMaker maker(setup.seed);
    linear_ = maker.Make(setup.weight);
    spec_ = MakeLinearSpec(linear_.weight, setup.numerics, setup.activation_block, setup.quantize_input);
    blob_.resize(static_cast<std::size_t>(spec_.bytes));
    PackLinear(linear_.weight, spec_, blob_.data());
    max_rows_ = *std::max_element(setup.rows.begin(), setup.rows.end());
    const std::int64_t in = setup.weight.in;
    const std::vector<std::uint16_t> x = maker.InputRows(max_rows_, in, setup.weight.recipe);
    // Rows are apart, and what is between and after them must not be read.
    x_stride_ = in + 6;
    x_.assign(static_cast<std::size_t>((max_rows_ + 1) * x_stride_), kPoisonBF16);
    Matrix<float> x_TK(max_rows_, in);
    for (std::int64_t t = 0; t < max_rows_; ++t) {
      for (std::int64_t k = 0; k < in; ++k) {
        const std::uint16_t bits = x[static_cast<std::size_t>(t * in + k)];
        x_[static_cast<std::size_t>(t * x_stride_ + k)] = bits;
        x_TK(t, k) = BF16ToFloat(bits);
      }
    }
    LinearEngine<reference::Contract> engine({.numerics = setup.numerics}, setup.activation_block);
    expected_TN_ = engine.Apply(linear_.weight, x_TK, LinearOutput::kFp32, setup.quantize_input);
  }

  const Matrix<float>& expected_TN() const { return expected_TN_; }

  void Check(const Implementation& implementation, int threads = 1) const {
    CallMemory memory(implementation);
    LinearArgs args = {.spec = &spec_, .blob = memory.In(blob_), .x = memory.In(x_), .x_stride = x_stride_};
    for (const std::int64_t rows : setup_.rows) {
      SCOPED_TRACE(Describe(setup_, implementation, rows, threads));
      args.rows = rows;
      CheckFp32(implementation, args);
      CheckBF16(implementation, args);
      if (testing::Test::HasFailure()) return;
    }
  }

  void Check() const {
    for (const int threads : setup_.threads) {
      for (const Implementation& implementation : Implementations(setup_.numerics.profile, threads))
        Check(implementation, threads);
    }
  }

 private:
  // Runs with y [rows + 1][out + 3] of `guard` for the output that `y_field` names.
  template <typename T>
  std::vector<T> Run(const Implementation& implementation, LinearArgs args, T* LinearArgs::*y_field,
                     T guard) const {
    std::vector<T> y(static_cast<std::size_t>((args.rows + 1) * (setup_.weight.out + 3)), guard);
    std::vector<std::int32_t> overflow = {0};
    CallMemory memory(implementation);
    args.*y_field = memory.InOut(y);
    args.y_stride = setup_.weight.out + 3;
    args.overflow = memory.InOut(overflow);
    implementation.kernels().linear(implementation.stream(), args);
    memory.Finish();
    EXPECT_EQ(overflow[0], 0);
    return y;
  }

  void CheckFp32(const Implementation& implementation, const LinearArgs& args) const {
    const std::int64_t out = setup_.weight.out, stride = out + 3;
    const std::vector<float> y = Run(implementation, args, &LinearArgs::y_fp32, kGuard);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(y.size()); ++i) {
      const std::int64_t t = i / stride, n = i % stride;
      const float expected = t < args.rows && n < out ? expected_TN_(t, n) : kGuard;
      const float actual = y[static_cast<std::size_t>(i)];
      ASSERT_EQ(std::memcmp(&actual, &expected, 4), 0)
          << "row " << t << ", output " << n << ": " << actual << ", expected " << expected;
    }
  }

  void CheckBF16(const Implementation& implementation, const LinearArgs& args) const {
    const std::int64_t out = setup_.weight.out, stride = out + 3;
    const std::vector<std::uint16_t> y = Run(implementation, args, &LinearArgs::y_bf16, kGuardBF16);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(y.size()); ++i) {
      const std::int64_t t = i / stride, n = i % stride;
      const std::uint16_t expected = t < args.rows && n < out ? FloatToBF16(expected_TN_(t, n)) : kGuardBF16;
      ASSERT_EQ(y[static_cast<std::size_t>(i)], expected) << "row " << t << ", output " << n;
    }
  }

  Setup setup_;
  TestLinear linear_;
  LinearSpec spec_;
  std::vector<std::byte> blob_;
  std::int64_t max_rows_ = 0, x_stride_ = 0;
  std::vector<std::uint16_t> x_;
  Matrix<float> expected_TN_;
};

// A result that is constant or mostly zero would prove little.
void ExpectTrustworthy(const Matrix<float>& y_TN) {
  EXPECT_LT((y_TN.array() == 0.0f).count() * 2, y_TN.size());
  EXPECT_TRUE(y_TN.size() < 2 || (y_TN.array() != y_TN(0, 0)).any());
  EXPECT_TRUE(y_TN.allFinite());
}

void CheckAgainstReference(const Setup& setup) {
  const Problem problem(setup);
  ExpectTrustworthy(problem.expected_TN());
  problem.Check();
}

constexpr Profile kProfiles[] = {Profile::kSm90, Profile::kSm90K8,  Profile::kSm80, Profile::kSm75,
                                 Profile::kSm70, Profile::kSm70Jit, Profile::kFma};
constexpr Codebook kCodebooks[] = {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1};
constexpr int kRates[] = {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};

TEST(LinearAgainstReference, IntegerMul1AtEveryRate) {
  for (const int bits_x2 : kRates) {
    for (const ActQuant act_quant : {ActQuant::kInt8, ActQuant::kInt16}) {
      for (const Recipe recipe : {Recipe::kNormal, Recipe::kSpiky}) {
        CheckAgainstReference({.weight = {.kind = Kind::kExl3,
                                          .out = 140,
                                          .in = 650,
                                          .bits_x2 = bits_x2,
                                          .bias = bits_x2 % 4 == 0,
                                          .recipe = recipe},
                               .numerics = {.act_quant = act_quant}});
      }
    }
  }
}

TEST(LinearAgainstReference, HalfTrellisAtEveryRateAndCodebook) {
  for (const Codebook codebook : kCodebooks) {
    for (const int bits_x2 : kRates) {
      for (const Profile profile : {Profile::kFma, Profile::kSm90}) {
        CheckAgainstReference(
            {.weight = {.kind = Kind::kExl3, .out = 130, .in = 650, .bits_x2 = bits_x2, .codebook = codebook},
             .numerics = {.profile = profile, .act_quant = ActQuant::kNone},
             .rows = {1, 2, 5}});
      }
    }
  }
}

// Two million random states are all 65,536 many times over.
TEST(LinearAgainstReference, EveryStateOfEveryCodebook) {
  for (const Codebook codebook : kCodebooks) {
    for (const ActQuant act_quant : {ActQuant::kNone, ActQuant::kInt8}) {
      CheckAgainstReference(
          {.weight = {.kind = Kind::kExl3, .out = 1024, .in = 2048, .bits_x2 = 16, .codebook = codebook},
           .numerics = {.profile = Profile::kFma, .act_quant = act_quant},
           .rows = {1},
           .threads = {2}});
    }
  }
}

TEST(LinearAgainstReference, EveryProfileAndStorage) {
  const LinearCase cases[] = {
      {.kind = Kind::kBF16, .out = 37, .in = 700},
      {.kind = Kind::kF16, .out = 37, .in = 700},
      {.kind = Kind::kF32, .out = 37, .in = 700},
      {.kind = Kind::kFp8Block, .out = 37, .in = 700, .block = 32},
      {.kind = Kind::kFp8Block, .out = 150, .in = 700, .block = 128},
      {.kind = Kind::kFp4Row, .out = 37, .in = 704},
      {.kind = Kind::kExl3, .out = 37, .in = 700, .codebook = Codebook::kMcg},
  };
  for (const Profile profile : kProfiles) {
    for (LinearCase weight : cases) {
      for (const Recipe recipe : {Recipe::kNormal, Recipe::kSpiky}) {
        if (recipe == Recipe::kSpiky && weight.kind == Kind::kExl3)
          continue;  // its outliers leave the fp16 range, see below
        weight.recipe = recipe;
        for (const bool fake_quant : {true, false}) {
          CheckAgainstReference({.weight = weight,
                                 .numerics = {.profile = profile, .fake_quant = fake_quant},
                                 .activation_block = weight.block == 128 ? 128 : 32});
        }
      }
    }
  }
}

TEST(LinearAgainstReference, OddSizes) {
  for (const std::int64_t in : {1, 7, 16, 31, 100, 127, 128, 129, 300, 511, 640}) {
    for (const std::int64_t out : {1, 5, 16, 17, 129}) {
      for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kF32, Kind::kFp8Block, Kind::kExl3}) {
        for (const Profile profile : {Profile::kSm90, Profile::kFma}) {
          const Problem problem({.weight = {.kind = kind, .out = out, .in = in, .bits_x2 = 5},
                                 .numerics = {.profile = profile},
                                 .rows = {1, 4}});
          problem.Check();
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(LinearAgainstReference, AnyNumberOfRowsAndThreads) {
  const LinearCase cases[] = {
      {.kind = Kind::kExl3, .out = 200, .in = 700, .bits_x2 = 6},
      {.kind = Kind::kExl3, .out = 200, .in = 700, .bits_x2 = 12},
      {.kind = Kind::kExl3, .out = 200, .in = 260, .bits_x2 = 6, .codebook = Codebook::kMcg},
      {.kind = Kind::kFp8Block, .out = 50, .in = 260},
      {.kind = Kind::kF32, .out = 50, .in = 260},
  };
  for (const LinearCase& weight : cases) {
    CheckAgainstReference(
        {.weight = weight,
         .rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 33, 63, 64, 65, 70},
         .threads = {1, 2, 3, 4}});
  }
}

// wo_a: groups of rows of one stored matrix, FP8 weights dequantised.
TEST(LinearAgainstReference, SlicesOfRows) {
  for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kF32, Kind::kFp8Block, Kind::kFp4Row}) {
    for (const Profile profile : {Profile::kSm90, Profile::kFma}) {
      for (const std::int64_t row_begin : {32, 21}) {
        CheckAgainstReference({.weight = {.kind = kind, .out = 45, .in = 320, .row_begin = row_begin},
                               .numerics = {.profile = profile},
                               .quantize_input = false});
      }
    }
  }
}

// The device alone, where there is one: more rows than its tiles have, for every form that it computes.
class LinearOnDevice : public testing::TestWithParam<Implementation> {};

void CheckRows(const Implementation& implementation, Setup setup, const std::vector<std::int64_t>& rows) {
  setup.rows = rows;
  const Problem problem(setup);
  ExpectTrustworthy(problem.expected_TN());
  problem.Check(implementation);
}

void CheckManyRows(const Implementation& implementation, const Setup& setup) {
  CheckRows(implementation, setup, {1, 2, 5, 8, 16, 17, 64, 100, 130, 300});
}

TEST_P(LinearOnDevice, IntegerMul1AtEveryRateAndManyRows) {
  for (const int bits_x2 : kRates) {
    for (const ActQuant act_quant : {ActQuant::kInt8, ActQuant::kInt16}) {
      CheckManyRows(
          GetParam(),
          {.weight = {.kind = Kind::kExl3, .out = 140, .in = 390, .bits_x2 = bits_x2, .bias = bits_x2 % 4 == 0},
           .numerics = {.act_quant = act_quant}});
    }
  }
}

TEST_P(LinearOnDevice, HalfTrellisAtEveryRateAndManyRows) {
  for (const Codebook codebook : kCodebooks) {
    for (const int bits_x2 : kRates) {
      CheckManyRows(
          GetParam(),
          {.weight = {.kind = Kind::kExl3, .out = 140, .in = 260, .bits_x2 = bits_x2, .codebook = codebook},
           .numerics = {.act_quant = ActQuant::kNone}});
    }
  }
}

TEST_P(LinearOnDevice, StoredFormsAndManyRows) {
  const LinearCase cases[] = {
      {.kind = Kind::kBF16, .out = 37, .in = 700},
      {.kind = Kind::kF16, .out = 37, .in = 700},
      {.kind = Kind::kF32, .out = 37, .in = 700},
      {.kind = Kind::kFp8Block, .out = 37, .in = 700, .block = 32},
      {.kind = Kind::kFp8Block, .out = 150, .in = 700, .block = 128},
      {.kind = Kind::kFp4Row, .out = 37, .in = 704},
  };
  for (const LinearCase& weight : cases) {
    for (const bool fake_quant : {true, false}) {
      CheckManyRows(GetParam(), {.weight = weight,
                                 .numerics = {.fake_quant = fake_quant},
                                 .activation_block = weight.block == 128 ? 128 : 32});
    }
  }
}

// As many rows as are multiplied by the widest tiles, with K segments that are full, short and empty.
TEST_P(LinearOnDevice, BF16OfVeryManyRows) {
  for (const std::int64_t in : {128, 384, 640, 1152}) {
    for (const std::int64_t out : {37, 200}) CheckRows(GetParam(), {.weight = {.kind = Kind::kBF16, .out = out, .in = in}}, {1024, 1153});
  }
}

// Sizes of V4.1's matrices, all four K segments full.
TEST_P(LinearOnDevice, LongReductions) {
  for (const Codebook codebook : {Codebook::kMul1, Codebook::kMcg}) {
    for (const std::int64_t in : {2304, 5120})
      CheckManyRows(
          GetParam(),
          {.weight = {.kind = Kind::kExl3, .out = 128, .in = in, .bits_x2 = 6, .codebook = codebook}});
  }
}

INSTANTIATE_TEST_SUITE_P(Device, LinearOnDevice, testing::ValuesIn(DeviceImplementations()),
                         testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearOnDevice);

// Small integers: every order of summation is exact, so the sums are simply the sums.
TEST(LinearLattice, SumsAreExactWhateverTheProfile) {
  for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kF32, Kind::kFp8Block, Kind::kFp4Row}) {
    const LinearCase weight = {.kind = kind, .out = 33, .in = 448, .recipe = Recipe::kLattice};
    LinearMaker maker(5);
    const TestLinear linear = maker.Make(weight);
    const std::vector<std::uint16_t> x = maker.InputRows(3, weight.in, Recipe::kLattice);
    LinearEngine<reference::Truth> truth({.truth = true, .numerics = {.fake_quant = false}}, kActivationBlock);
    Matrix<double> x_TK(3, weight.in);
    for (std::int64_t i = 0; i < x_TK.size(); ++i)
      x_TK.data()[i] = static_cast<double>(BF16ToFloat(x[static_cast<std::size_t>(i)]));
    const Matrix<double> expected_TN = truth.Apply(linear.weight, x_TK, LinearOutput::kFp32);
    for (const Profile profile : kProfiles) {
      const LinearSpec spec =
          MakeLinearSpec(linear.weight, {.profile = profile, .fake_quant = false}, kActivationBlock);
      std::vector<std::byte> blob(static_cast<std::size_t>(spec.bytes));
      PackLinear(linear.weight, spec, blob.data());
      for (const Implementation& implementation : Implementations(profile)) {
        std::vector<float> y(static_cast<std::size_t>(3 * weight.out));
        std::vector<std::int32_t> overflow = {0};
        CallMemory memory(implementation);
        implementation.kernels().linear(implementation.stream(), {.spec = &spec,
                                                                  .blob = memory.In(blob),
                                                                  .x = memory.In(x),
                                                                  .x_stride = weight.in,
                                                                  .rows = 3,
                                                                  .y_fp32 = memory.InOut(y),
                                                                  .y_stride = weight.out,
                                                                  .overflow = memory.InOut(overflow)});
        memory.Finish();
        for (std::size_t i = 0; i < y.size(); ++i)
          ASSERT_EQ(static_cast<double>(y[i]), expected_TN.data()[i])
              << NameOf(profile) << ", " << implementation;
      }
    }
  }
}

// Where the reference throws, kernels raise the flag; integer linears have no such limit.
TEST(LinearOverflow, ValuesBeyondFp16RaiseTheFlag) {
  struct Case {
    LinearCase weight;
    ActQuant act_quant = ActQuant::kAuto;
    bool overflows = true;
  };
  const Case cases[] = {
      {.weight = {.kind = Kind::kF16, .out = 16, .in = 256}},
      {.weight = {.kind = Kind::kExl3, .out = 128, .in = 256, .codebook = Codebook::kMcg}},
      {.weight = {.kind = Kind::kExl3, .out = 128, .in = 256}, .act_quant = ActQuant::kNone},
      {.weight = {.kind = Kind::kExl3, .out = 128, .in = 256}, .overflows = false},
      {.weight = {.kind = Kind::kBF16, .out = 16, .in = 256}, .overflows = false},
  };
  for (const Case& c : cases) {
    LinearMaker maker(6);
    const TestLinear linear = maker.Make(c.weight);
    const LinearSpec spec = MakeLinearSpec(linear.weight, {.act_quant = c.act_quant}, kActivationBlock);
    std::vector<std::byte> blob(static_cast<std::size_t>(spec.bytes));
    PackLinear(linear.weight, spec, blob.data());
    std::vector<std::uint16_t> x = maker.InputRows(3, 256, Recipe::kNormal);
    x[256 + 200] = FloatToBF16(3e5f);
    for (const Implementation& implementation : Implementations(Profile::kSm90, 2)) {
      SCOPED_TRACE(implementation.name());
      for (const std::int64_t rows : {1, 3}) {
        std::vector<float> y(static_cast<std::size_t>(3 * c.weight.out));
        std::vector<std::int32_t> overflow = {0};
        CallMemory memory(implementation);
        implementation.kernels().linear(implementation.stream(), {.spec = &spec,
                                                                  .blob = memory.In(blob),
                                                                  .x = memory.In(x),
                                                                  .x_stride = 256,
                                                                  .rows = rows,
                                                                  .y_fp32 = memory.InOut(y),
                                                                  .y_stride = c.weight.out,
                                                                  .overflow = memory.InOut(overflow)});
        memory.Finish();
        EXPECT_EQ(overflow[0], rows == 3 && c.overflows ? 1 : 0) << "only row 1 is out of range";
      }
    }
  }
}

TEST(LinearContract, IdsNameFamiliesAndProfileNotTheInstructionSet) {
  for (const Implementation& implementation : Implementations(Profile::kSm90))
    EXPECT_EQ(implementation.kernels().linear.contract, "linear/H(sm90)+I+F");
  for (const Implementation& implementation : Implementations(Profile::kFma))
    EXPECT_EQ(implementation.kernels().linear.contract, "linear/H(fma)+I+F");
}

}  // namespace
}  // namespace lockstep::kernels
