// EXL3 against vectors that others computed: the format's own GPU kernels and the published micro vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "model/float_formats.h"
#include "reference/exl3_decode.h"
#include "reference/linear.h"
#include "reference/quantize.h"
#include "reference/testing/oracle_files.h"
#include "reference/testing/test_linear.h"

namespace lockstep::reference {
namespace {

constexpr Codebook kCodebooks[] = {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1};

// FNV-1a-64 with the low byte of each value first.
class Hash {
 public:
  void Add(unsigned value) {
    for (const unsigned byte : {value & 0xffu, value >> 8}) hash_ = (hash_ ^ byte) * 1099511628211u;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 1469598103934665603u;
};

// --- codebooks: the published vectors ------------------------------------------------------------------------

TEST(Exl3CodebookTest, AllStatesHaveThePublishedHash) {
  const std::uint64_t expected[] = {0x7c0301ed35a60a96u, 0xdc7b073df3c0900du, 0xd2f0598df9b1f4f1u};
  for (const Codebook codebook : kCodebooks) {
    Hash hash;
    for (std::uint32_t state = 0; state < 65536; ++state) hash.Add(DecodeState(codebook, state));
    EXPECT_EQ(hash.value(), expected[static_cast<int>(codebook)]) << NameOf(codebook);
  }
}

TEST(Exl3CodebookTest, PublishedStates) {
  struct Row {
    std::uint32_t state;
    std::uint16_t weight[3];  // 3inst, mcg, mul1
    int byte_sum;
  };
  const Row rows[] = {{0x0000, {0x3a25, 0x3f60, 0xc2e8}, 0},   {0x0001, {0xbb5b, 0x304e, 0x3921}, 605},
                      {0x0002, {0x3b74, 0xba13, 0xb72d}, 444}, {0x1234, {0xc066, 0x3e0f, 0xb89e}, 425},
                      {0x7fff, {0xba96, 0x4172, 0x3fca}, 798}, {0x8000, {0xb7f8, 0xb915, 0xbaf2}, 382},
                      {0xabcd, {0xb98e, 0x35e7, 0xbd42}, 316}, {0xffff, {0xb110, 0x3acd, 0xb936}, 414}};
  for (const Row& row : rows) {
    for (const Codebook codebook : kCodebooks) {
      EXPECT_EQ(DecodeState(codebook, row.state), row.weight[static_cast<int>(codebook)]) << row.state;
    }
    EXPECT_EQ(Mul1ByteSum(row.state), row.byte_sum) << row.state;
  }
}

// The affine form that family I uses differs from the format's weight by one fp16 rounding.
TEST(Exl3CodebookTest, AffineFormIsTheMul1WeightBeforeItsRounding) {
  for (std::uint32_t state = 0; state < 65536; ++state) {
    const double affine = (1774.0 * (Mul1ByteSum(state) - 510) - 476.0) / 262144.0;
    ASSERT_EQ(DecodeState(Codebook::kMul1, state), FloatToF16(static_cast<float>(affine))) << state;
    ASSERT_EQ(static_cast<double>(static_cast<float>(affine)), affine) << state;
  }
}

// --- tiles ---------------------------------------------------------------------------------------------------

// One 16x16 tile as matrix; the tile's row-major weights hashed.
std::uint64_t TileHash(Codebook codebook, int bits_x2) {
  std::vector<std::uint32_t> words;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(4 * bits_x2); ++i) {
    words.push_back(0x01234567u * (i + 1) + 0x9e3779b9u);
  }
  std::vector<std::uint16_t> weights(256);
  for (int p = 0; p < 256; ++p) {
    weights[static_cast<std::size_t>(Exl3TileRow(p) * 16 + Exl3TileColumn(p))] =
        DecodeState(codebook, Exl3State(words.data(), p, bits_x2));
  }
  Hash hash;
  for (const std::uint16_t w : weights) hash.Add(w);
  return hash.value();
}

TEST(Exl3TileTest, WholeTilesHaveThePublishedHashes) {
  struct Row {
    int bits_x2;
    std::uint64_t hash[3];
  };
  const Row rows[] = {{2, {0xfc8dfc8acaf5650d, 0xd7a42fa657e943c2, 0x034583f18db01ccf}},
                      {3, {0x47f028ac26084732, 0x42d2080bda3a1373, 0xa4eb19076865eafc}},
                      {4, {0x260114a6aa89d062, 0x137793db5076973c, 0xad652d14cdb26022}},
                      {5, {0xd99a74af05731bca, 0x18c8643248be9c4e, 0x74b424126dfd5f84}},
                      {6, {0x41cc81a12c4a2e3f, 0x236a6b1e786a4686, 0xaa57f74e112b2299}},
                      {7, {0x6630a088b06f7fe1, 0x6a943e4188b6bc83, 0x17f1e624697b6fad}},
                      {8, {0x44fc44d0ad7c443c, 0xdf42aa17d368473f, 0x288235d17e4bd06d}},
                      {10, {0x5372f4709c74c4d4, 0x5e2ca2eb2262c644, 0x055f3995a4f7d0f5}},
                      {12, {0xca6a6ef2669ac0c7, 0xeae488e4186ab232, 0x80cea217ab778d0a}},
                      {14, {0xaf9399c6d520d60b, 0xf2b6073f8f769b01, 0xcc871625209a87db}},
                      {16, {0x9fd6d0b34b840341, 0xaa0beb427d70c081, 0xbfc65818a154ffec}}};
  for (const Row& row : rows) {
    for (const Codebook codebook : kCodebooks) {
      EXPECT_EQ(TileHash(codebook, row.bits_x2), row.hash[static_cast<int>(codebook)])
          << NameOf(codebook) << ", " << row.bits_x2 / 2.0 << " bits";
    }
  }
}

TestLinear::Exl3 Parts(Codebook codebook, int bits_x2, std::int64_t in, std::int64_t out) {
  TestLinear::Exl3 parts;
  parts.codebook = codebook;
  parts.bits_x2 = bits_x2;
  parts.in = in;
  parts.out = out;
  parts.suh.assign(static_cast<std::size_t>(in), 1.0f);
  parts.svh.assign(static_cast<std::size_t>(out), 1.0f);
  return parts;
}

// The decoded matrix, fp16 bits, [in][out].
std::vector<std::uint16_t> DecodeMatrix(const Exl3Matrix& matrix) {
  std::vector<std::uint16_t> weights(static_cast<std::size_t>(matrix.in_padded * matrix.out_padded));
  ForEachState(matrix, [&](std::int64_t row, std::int64_t column, std::uint32_t state) {
    weights[static_cast<std::size_t>(row * matrix.out_padded + column)] = DecodeState(matrix.codebook, state);
  });
  return weights;
}

TEST(Exl3OracleTest, FormatsGpuKernelDecodesTheSameWeightsInAll24Records) {
  RecordReader reader(OraclePath("exl3/exl3_reconstruct.bin"));
  int records = 0;
  for (; !reader.AtEnd(); ++records) {
    const std::int64_t bits = reader.ReadInt();
    const auto codebook = static_cast<Codebook>(reader.ReadInt());
    const std::int64_t k = reader.ReadInt(), n = reader.ReadInt();
    // The record may be smaller than the 128 that a linear is padded to: view its tiles directly.
    const std::vector<std::uint32_t> words = reader.Read<std::uint32_t>(k * n * bits / 32);
    const std::vector<std::uint16_t> expected = reader.Read<std::uint16_t>(k * n);
    Exl3Matrix matrix;
    matrix.codebook = codebook;
    matrix.bits_x2 = static_cast<int>(2 * bits);
    matrix.in_padded = k;
    matrix.out_padded = n;
    matrix.trellis.data = std::as_bytes(std::span(words));
    EXPECT_EQ(DecodeMatrix(matrix), expected)
        << "record " << records << ": " << NameOf(codebook) << ", " << bits << " bits";
  }
  EXPECT_EQ(records, 24);
}

// --- transforms ----------------------------------------------------------------------------------------------

std::vector<float> Widen(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values;
  for (const std::uint16_t b : bits) values.push_back(F16ToFloat(b));
  return values;
}

struct HadamardOracle {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> x, scale;
  std::vector<std::uint16_t> scale_first, scale_last;
};

HadamardOracle ReadHadamardOracle() {
  RecordReader reader(OraclePath("exl3/exl3_hadamard.bin"));
  HadamardOracle oracle;
  oracle.rows = reader.ReadInt();
  oracle.columns = reader.ReadInt();
  oracle.x = Widen(reader.Read<std::uint16_t>(oracle.rows * oracle.columns));
  oracle.scale = Widen(reader.Read<std::uint16_t>(oracle.columns));
  oracle.scale_first = reader.Read<std::uint16_t>(oracle.rows * oracle.columns);
  oracle.scale_last = reader.Read<std::uint16_t>(oracle.rows * oracle.columns);
  EXPECT_TRUE(reader.AtEnd());
  return oracle;
}

// The contract's transform of one 128-block: fp32 butterfly, each element then times 1/sqrt(128).
void Transform(float* x) {
  Butterfly(x, 128);
  for (int i = 0; i < 128; ++i) x[i] *= static_cast<float>(1.0 / std::sqrt(128.0));
}

// The contract's input side of mcg and 3inst: fp16(x*suh), butterfly and 1/sqrt(128) in fp32, fp16.
TEST(Exl3OracleTest, FormatsGpuInputTransformIsTheContractsForMcgAnd3inst) {
  const HadamardOracle oracle = ReadHadamardOracle();
  int wrong = 0;
  for (std::int64_t begin = 0; begin < oracle.rows * oracle.columns; begin += 128) {
    float t[128];
    for (std::int64_t i = 0; i < 128; ++i) {
      t[i] = RoundToF16(oracle.x[static_cast<std::size_t>(begin + i)] *
                        oracle.scale[static_cast<std::size_t>((begin + i) % oracle.columns)]);
    }
    Transform(t);
    for (std::int64_t i = 0; i < 128; ++i)
      wrong += FloatToF16(t[i]) != oracle.scale_first[static_cast<std::size_t>(begin + i)];
  }
  EXPECT_EQ(wrong, 0);
}

// This kernel of the format writes fp16: it rounds before and after the multiplication by svh. The contract
// keeps fp32 up to the output's own rounding, as the format's fp32 kernels do; with the two fp16 roundings put
// in, its transform has the oracle's bits.
TEST(Exl3OracleTest, FormatsGpuOutputTransformIsTheContractsWithTwoFp16RoundingsMore) {
  const HadamardOracle oracle = ReadHadamardOracle();
  int wrong = 0, wrong_without = 0;
  for (std::int64_t begin = 0; begin < oracle.rows * oracle.columns; begin += 128) {
    float t[128];
    for (std::int64_t i = 0; i < 128; ++i) t[i] = oracle.x[static_cast<std::size_t>(begin + i)];
    Transform(t);
    for (std::int64_t i = 0; i < 128; ++i) {
      const float scale = oracle.scale[static_cast<std::size_t>((begin + i) % oracle.columns)];
      const std::uint16_t expected = oracle.scale_last[static_cast<std::size_t>(begin + i)];
      wrong += FloatToF16(RoundToF16(t[i]) * scale) != expected;
      wrong_without += FloatToF16(t[i] * scale) != expected;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(wrong_without, 0);
}

// --- whole linears: the published end-to-end vector ----------------------------------------------------------

struct EndToEndRow {
  std::string name;
  Codebook codebook;
  int bits_x2;
  double q00, q5_77, q255_127, w00, w200_100, y0, y1, y64, y127, sum_of_squares;
};

class Exl3EndToEndTest : public testing::TestWithParam<EndToEndRow> {
 protected:
  static constexpr std::int64_t kIn = 256, kOut = 128;

  static TestLinear Make(const EndToEndRow& row) {
    TestLinear::Exl3 parts = Parts(row.codebook, row.bits_x2, kIn, kOut);
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(kIn / 16 * kOut / 16 * 4 * row.bits_x2); ++i) {
      std::uint32_t x = i * 2654435761u + 12345u;
      x ^= x >> 15;
      x *= 0x2c1b3c6du;
      parts.words.push_back(x ^ (x >> 12));
    }
    for (int i = 0; i < kIn; ++i) {
      const float magnitude = static_cast<float>(37 * i % 64 + 32) / 64.0f;
      parts.suh[static_cast<std::size_t>(i)] = (i * i) & 8 ? -magnitude : magnitude;
    }
    for (int j = 0; j < kOut; ++j) {
      const float magnitude = static_cast<float>(53 * j % 32 + 16) / 1024.0f;
      parts.svh[static_cast<std::size_t>(j)] = (j * j) & 4 ? -magnitude : magnitude;
    }
    return TestLinear::FromExl3(parts);
  }

  static Matrix<double> Apply(const TestLinear& linear, const Matrix<double>& x) {
    Options options;
    options.truth = true;
    options.numerics.act_quant = ActQuant::kNone;
    return LinearEngine<Truth>(options, 128).Apply(linear.weight(), x, LinearOutput::kFp32);
  }
};

constexpr double kNineDigits = 5e-9;  // the vector's values are printed with nine

TEST_P(Exl3EndToEndTest, PublishedVector) {
  const EndToEndRow& row = GetParam();
  const TestLinear linear = Make(row);
  const std::vector<std::uint16_t> q = DecodeMatrix(linear.weight().exl3);
  const auto weight = [&](std::size_t i, std::size_t j) { return F16ToFloat(q[i * kOut + j]); };
  EXPECT_NEAR(weight(0, 0), row.q00, std::fabs(row.q00) * kNineDigits);
  EXPECT_NEAR(weight(5, 77), row.q5_77, std::fabs(row.q5_77) * kNineDigits);
  EXPECT_NEAR(weight(255, 127), row.q255_127, std::fabs(row.q255_127) * kNineDigits);

  const Matrix<double> dense = Apply(linear, Matrix<double>::Identity(kIn, kIn));
  EXPECT_NEAR(dense(0, 0), row.w00, std::fabs(row.w00) * kNineDigits);
  EXPECT_NEAR(dense(200, 100), row.w200_100, std::fabs(row.w200_100) * kNineDigits);

  Matrix<double> x(1, kIn);
  for (int i = 0; i < kIn; ++i) x(0, i) = (29 * i % 97 - 48) / 32.0;
  const Matrix<double> y = Apply(linear, x);
  EXPECT_NEAR(y(0, 0), row.y0, std::fabs(row.y0) * kNineDigits);
  EXPECT_NEAR(y(0, 1), row.y1, std::fabs(row.y1) * kNineDigits);
  EXPECT_NEAR(y(0, 64), row.y64, std::fabs(row.y64) * kNineDigits);
  EXPECT_NEAR(y(0, 127), row.y127, std::fabs(row.y127) * kNineDigits);
  EXPECT_NEAR(y.squaredNorm(), row.sum_of_squares, row.sum_of_squares * kNineDigits);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, Exl3EndToEndTest,
    testing::Values(
        EndToEndRow{"Mul1K2", Codebook::kMul1, 4, 3.34765625, -0.631347656, -0.3671875, 0.00395630999,
                    -0.0286954397, 0.456471285, -0.0797754195, 0.0339171886, -0.0260831527, 29.0812793},
        EndToEndRow{"McgK3", Codebook::kMcg, 6, 1.26953125, -0.204589844, 1.32617188, -0.0109319463,
                    -0.0488376198, -0.275941673, -0.399907531, -0.51667176, -0.362918063, 47.2050523},
        EndToEndRow{"ThreeInstK4", Codebook::k3inst, 8, -1.29785156, -0.390136719, 0.25390625, 0.00411280245,
                    -0.00383164035, 0.213494389, -0.522350613, 0.153771289, -0.0119622241, 43.4118422},
        EndToEndRow{"Mul1K2Half", Codebook::kMul1, 5, 1.38574219, -1.75488281, 2.22460938, 0.00982022099,
                    0.0753160048, 0.454812504, -0.977384519, -0.154161541, 0.580172399, 25.2245902}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace lockstep::reference
