#include "reference/mma_block.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "model/float_formats.h"
#include "reference/arithmetic.h"
#include "reference/testing/error_bounds.h"
#include "reference/testing/oracle_files.h"
#include "reference/testing/page_arithmetic.h"
#include "reference/testing/test_inputs.h"

namespace lockstep::reference {
namespace {

constexpr Profile kAllProfiles[] = {Profile::kSm90, Profile::kSm90K8,  Profile::kSm80, Profile::kSm75,
                                    Profile::kSm70, Profile::kSm70Jit, Profile::kFma};
constexpr OperandFormat kFormats[] = {OperandFormat::kFp16, OperandFormat::kBf16};
constexpr Shape kShapes[] = {Shape::kNormal, Shape::kWide, Shape::kCancelling};

// --- oracle: what an H200 returned ---------------------------------------------------------------------------

struct MmaRecord {
  OperandFormat format = OperandFormat::kFp16;
  int m = 0, n = 0, k = 0, block = 0;
  std::vector<float> a_MK, b_NK, c_MN, d_MN;

  std::string where;
};

std::vector<float> Widen(const std::vector<std::uint16_t>& bits, OperandFormat format) {
  std::vector<float> values;
  for (const std::uint16_t b : bits)
    values.push_back(format == OperandFormat::kFp16 ? F16ToFloat(b) : BF16ToFloat(b));
  return values;
}

std::vector<MmaRecord> ReadMmaRecords(const std::string& file, bool has_c) {
  RecordReader reader(OraclePath("mma/" + file));
  std::vector<MmaRecord> records;
  while (!reader.AtEnd()) {
    MmaRecord r;
    const int kind = reader.ReadInt(), distribution = reader.ReadInt();
    r.format = kind % 2 == 1 ? OperandFormat::kBf16 : OperandFormat::kFp16;
    r.m = reader.ReadInt();
    r.n = reader.ReadInt();
    r.k = reader.ReadInt();
    r.block = reader.ReadInt();
    r.a_MK = Widen(reader.Read<std::uint16_t>(r.m * r.k), r.format);
    r.b_NK = Widen(reader.Read<std::uint16_t>(r.n * r.k), r.format);
    r.c_MN =
        has_c ? reader.Read<float>(r.m * r.n) : std::vector<float>(static_cast<std::size_t>(r.m * r.n), 0.0f);
    r.d_MN = reader.Read<float>(r.m * r.n);
    r.where = file + " kind " + std::to_string(kind) + " distribution " + std::to_string(distribution);
    records.push_back(std::move(r));
  }
  return records;
}

struct Tally {
  int outputs = 0, wrong = 0;
  std::string first;  // wrong output
};

// Runs every output through MmaChain; `profile_of` says which profile computes a record.
template <typename ProfileOf>
Tally CompareWithOracle(const std::vector<MmaRecord>& records, ProfileOf profile_of) {
  Tally tally;
  for (const MmaRecord& r : records) {
    const Operands a = MakeOperands(r.a_MK.data(), r.m * r.k, r.format);
    const Operands b = MakeOperands(r.b_NK.data(), r.n * r.k, r.format);
    for (int i = 0; i < r.m; ++i) {
      for (int j = 0; j < r.n; ++j) {
        const auto at = static_cast<std::size_t>(i * r.n + j);
        const float got =
            MmaChain(profile_of(r), r.c_MN[at], a, std::int64_t{i} * r.k, b, std::int64_t{j} * r.k, r.k);
        ++tally.outputs;
        if (std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(r.d_MN[at])) continue;
        if (tally.wrong++ == 0) {
          tally.first = r.where + ": " + std::to_string(got) + " instead of " + std::to_string(r.d_MN[at]);
        }
      }
    }
  }
  return tally;
}

Profile OwnProfile(const MmaRecord& record) { return record.block == 16 ? Profile::kSm90 : Profile::kSm90K8; }

TEST(MmaOracleTest, AllH200OutputsOfSm90BinAreExact) {
  const Tally tally = CompareWithOracle(ReadMmaRecords("sm90.bin", false), OwnProfile);
  EXPECT_EQ(tally.outputs, 16000);
  EXPECT_EQ(tally.wrong, 0) << tally.first;
}

TEST(MmaOracleTest, AllH200OutputsOfSm90EdgesBinAreExact) {
  const Tally tally = CompareWithOracle(ReadMmaRecords("sm90_edges.bin", true), OwnProfile);
  EXPECT_GE(tally.outputs, 6 * 10 * 128);
  EXPECT_EQ(tally.wrong, 0) << tally.first;
}

TEST(MmaOracleTest, OtherProfilesAreToldApart) {
  const std::vector<MmaRecord> records = ReadMmaRecords("sm90.bin", false);
  for (const Profile profile : {Profile::kSm80, Profile::kSm70, Profile::kSm70Jit}) {
    EXPECT_GT(CompareWithOracle(records, [&](const MmaRecord&) { return profile; }).wrong, 1000)
        << NameOf(profile);
  }
  const auto exchanged = [](const MmaRecord& r) { return r.block == 16 ? Profile::kSm90K8 : Profile::kSm90; };
  EXPECT_GT(CompareWithOracle(records, exchanged).wrong, 1000);
}

// --- contract: every profile has the bits of the page --------------------------------------------------------

class ChainTest : public testing::TestWithParam<Profile> {
 protected:
  static float Dot(const std::vector<float>& a, const std::vector<float>& b, OperandFormat format) {
    return ChainH(GetParam(), MakeHRows(GetParam(), a, format), 0, MakeHRows(GetParam(), b, format), 0,
                  static_cast<std::int64_t>(a.size()));
  }
};

constexpr std::int64_t kLengths[] = {1, 3, 4, 7, 8, 15, 16, 17, 33, 64, 127, 128, 640};

TEST_P(ChainTest, HasTheBitsOfThePage) {
  Random random(11);
  for (const OperandFormat format : kFormats) {
    for (const Shape shape : kShapes) {
      for (const std::int64_t n : kLengths) {
        for (int repeat = 0; repeat < 20; ++repeat) {
          const DotOperands x = DrawDot(shape, n, format, random);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(Dot(x.a, x.b, format)),
                    std::bit_cast<std::uint32_t>(page::DotH(GetParam(), x.a, x.b, format)))
              << NameOf(shape) << " n " << n;
        }
      }
    }
  }
}

TEST_P(ChainTest, SubnormalsZerosAndTinyProductsHaveTheBitsOfThePage) {
  if (GetParam() == Profile::kFma) return;  // nothing of its own below the normal range
  Random random(12);
  for (const OperandFormat format : kFormats) {
    for (int repeat = 0; repeat < 2000; ++repeat) {
      const std::int64_t n = random.Integer(1, 40);
      std::vector<float> a, b;
      for (std::int64_t k = 0; k < n; ++k) {
        // Any finite bit pattern, thinned towards small exponents and zeros.
        const auto draw = [&] {
          const auto bits = static_cast<std::uint16_t>(random.Bits());
          const int kind = static_cast<int>(random.Integer(0, 3));
          const std::uint16_t kept = kind == 0 ? 0x8000u : kind == 1 ? 0x83ffu : kind == 2 ? 0x9fffu : 0xbfffu;
          return static_cast<std::uint16_t>(bits & kept);
        };
        a.push_back(format == OperandFormat::kFp16 ? F16ToFloat(draw()) : BF16ToFloat(draw()));
        b.push_back(format == OperandFormat::kFp16 ? F16ToFloat(draw()) : BF16ToFloat(draw()));
      }
      const float c = repeat % 2 ? 0.0f : static_cast<float>(random.Normal()) * 0x1p-130f;
      const float got = MmaChain(GetParam(), c, MakeOperands(a.data(), n, format), 0,
                                 MakeOperands(b.data(), n, format), 0, n);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got),
                std::bit_cast<std::uint32_t>(page::Chain(GetParam(), c, a, b, format)))
          << "n " << n << " c " << c;
    }
  }
}

// --- truth: lattice inputs exact, others within the derived bound --------------------------------------------

TEST_P(ChainTest, LatticeIsExact) {
  Random random(13);
  for (const OperandFormat format : kFormats) {
    for (const std::int64_t n : kLengths) {
      const DotOperands x = DrawDot(Shape::kLattice, n, format, random);
      ASSERT_EQ(Dot(x.a, x.b, format), ExactDot(x.a, x.b)) << n;
    }
  }
}

TEST_P(ChainTest, TruthWithinBoundAndALostProductIsNot) {
  Random random(14);
  for (const OperandFormat format : kFormats) {
    for (const Shape shape : kShapes) {
      int caught = 0, drawn = 0;
      for (const std::int64_t n : {16, 33, 128, 640}) {
        for (int repeat = 0; repeat < 10; ++repeat) {
          DotOperands x = DrawDot(shape, n, format, random);
          const double bound = ChainBound(GetParam(), n) * AbsoluteDot(x.a, x.b), exact = ExactDot(x.a, x.b);
          ASSERT_LE(std::fabs(Dot(x.a, x.b, format) - exact), bound) << NameOf(shape) << " n " << n;
          x.a.back() = 0;
          caught += std::fabs(Dot(x.a, x.b, format) - exact) > bound;
          ++drawn;
        }
      }
      // Among wide inputs the last product may be far below the sum.
      EXPECT_GE(caught, shape == Shape::kWide ? drawn / 2 : drawn) << NameOf(shape);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Profiles, ChainTest, testing::ValuesIn(kAllProfiles),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

TEST(MmaChainTest, InfiniteAccumulatorStays) {
  const std::vector<float> ones(16, 1.0f);
  const Operands operands = MakeOperands(ones.data(), 16, OperandFormat::kFp16);
  for (const Profile profile : kAllProfiles) {
    if (profile == Profile::kFma) continue;
    EXPECT_EQ(MmaChain(profile, -INFINITY, operands, 0, operands, 0, 16), -INFINITY) << NameOf(profile);
  }
}

TEST(DotFTest, HasTheBitsOfThePage) {
  Random random(15);
  for (const std::int64_t n : {1, 2, 127, 128, 129, 255, 256, 300, 5120, 20480}) {
    for (const Shape shape : kShapes) {
      const DotOperands x = DrawDot(shape, n, OperandFormat::kFp16, random);
      ASSERT_EQ(DotF(x.a.data(), x.b.data(), n), page::DotF(x.a, x.b)) << n;
    }
  }
}

TEST(DotFTest, LatticeIsExact) {
  Random random(16);
  for (const std::int64_t n : {1, 127, 129, 5120}) {
    const DotOperands x = DrawDot(Shape::kLattice, n, OperandFormat::kBf16, random);
    ASSERT_EQ(DotF(x.a.data(), x.b.data(), n), ExactDot(x.a, x.b)) << n;
  }
}

TEST(DotFTest, TruthWithinBoundAndALostProductOrLaneIsNot) {
  Random random(17);
  for (const std::int64_t n : {128, 129, 300, 5120, 20480}) {
    for (const Shape shape : kShapes) {
      for (int repeat = 0; repeat < 10; ++repeat) {
        DotOperands x = DrawDot(shape, n, OperandFormat::kBf16, random);
        const double bound = Gamma(DepthF(n)) * AbsoluteDot(x.a, x.b), exact = ExactDot(x.a, x.b);
        ASSERT_LE(std::fabs(DotF(x.a.data(), x.b.data(), n) - exact), bound) << NameOf(shape) << " n " << n;
        if (shape == Shape::kWide) continue;
        ASSERT_GT(std::fabs(DotF(x.a.data(), x.b.data(), n - 1) - exact), bound) << "last product, n " << n;
        std::vector<float> lane_lost = x.a;
        for (std::size_t k = static_cast<std::size_t>(n - 1) % 128; k < lane_lost.size(); k += 128)
          lane_lost[k] = 0;
        ASSERT_GT(std::fabs(DotF(lane_lost.data(), x.b.data(), n) - exact), bound) << "lane, n " << n;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::reference
