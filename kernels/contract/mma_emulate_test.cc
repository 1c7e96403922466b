// mma_emulate.h against an H200's outputs and against mma_block.h on random and adversarial blocks, in every
// build.
#include "kernels/contract/mma_emulate.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/contract/cpu_isa.h"
#include "kernels/contract/mma_block.h"
#include "kernels/contract/mma_emulate_probe.h"
#include "kernels/contract/mma_oracle.h"
#include "model/float_formats.h"

namespace lockstep {
namespace {

std::uint32_t BitsOf(float f) { return std::bit_cast<std::uint32_t>(f); }

// Up to four rows of A, sixteen columns of B and accumulators.
struct Tile {
  MmaFormat format = MmaFormat::kF16;
  int rows = 0;
  std::int64_t k = 0;
  std::vector<std::uint16_t> a;  // [rows][k]
  std::vector<std::uint16_t> b;  // [k][16]
  std::vector<float> c;          // [rows][16]
};

// H(c; a, b) of the tile by the build's lanes.
std::vector<float> Emulate(Isa isa, Profile profile, const Tile& tile) {
  const auto padded = static_cast<std::size_t>(contract::MmaPaddedLength(tile.k));
  std::vector<float> values_a(4 * padded), values_b(16 * padded);
  std::vector<std::int32_t> exponents_a(2 * padded), exponents_b(8 * padded);
  std::vector<float> c = tile.c;
  MmaEmulateCall call{};
  call.profile = profile;
  call.rows = tile.rows;
  call.k = tile.k;
  for (int r = 0; r < tile.rows; ++r) {
    float* values = values_a.data() + static_cast<std::size_t>(r) * padded;
    std::int32_t* exponents = exponents_a.data() + static_cast<std::size_t>(r) * padded / 2;
    contract::DecodeMmaRow(tile.format, tile.a.data() + r * tile.k, tile.k, values, exponents);
    call.values_a[r] = values;
    call.exponents_a[r] = exponents;
  }
  ForIsa(isa, mma_emulate_probe::generic::DecodePanel, mma_emulate_probe::avx2::DecodePanel,
         mma_emulate_probe::avx512::DecodePanel)(tile.format, tile.b.data(), tile.k, values_b.data(),
                                                 exponents_b.data());
  call.values_b = values_b.data();
  call.exponents_b = exponents_b.data();
  call.c = c.data();
  ForIsa(isa, mma_emulate_probe::generic::Accumulate, mma_emulate_probe::avx2::Accumulate,
         mma_emulate_probe::avx512::Accumulate)(call);
  return c;
}

// The same by mma_block.h.
std::vector<float> Literal(Profile profile, const Tile& tile) {
  const auto operand = [&](std::uint16_t bits) {
    return tile.format == MmaFormat::kF16 ? contract::MmaOperandOfF16(bits) : contract::MmaOperandOfBF16(bits);
  };
  std::vector<float> results;
  for (int r = 0; r < tile.rows; ++r) {
    for (int n = 0; n < 16; ++n) {
      std::vector<contract::MmaOperand> a, b;
      for (std::int64_t k = 0; k < tile.k; ++k) {
        a.push_back(operand(tile.a[static_cast<std::size_t>(r * tile.k + k)]));
        b.push_back(operand(tile.b[static_cast<std::size_t>(16 * k + n)]));
      }
      const float c = tile.c[16 * static_cast<std::size_t>(r) + static_cast<std::size_t>(n)];
      results.push_back(contract::MmaAccumulate(profile, c, a.data(), b.data(), tile.k));
    }
  }
  return results;
}

class MmaEmulateTest : public testing::TestWithParam<Isa> {
 protected:
  void ExpectOracle(const std::vector<MmaRecord>& records) {
    for (const MmaRecord& record : records) {
      const Profile profile = record.block == 8 ? Profile::kSm90K8 : Profile::kSm90;
      for (int first = 0; first < record.m; first += 4) ExpectRows(record, profile, first);
    }
  }

 private:
  void ExpectRows(const MmaRecord& record, Profile profile, int first) {
    Tile tile;
    tile.format = record.is_bf16 ? MmaFormat::kBF16 : MmaFormat::kF16;
    tile.rows = 4;
    tile.k = record.k;
    const auto k = static_cast<std::size_t>(record.k);
    const auto begin = static_cast<std::size_t>(first);
    tile.a.assign(record.a.begin() + first * record.k, record.a.begin() + (first + 4) * record.k);
    tile.b.assign(16 * k, 0);  // eight columns are not used
    tile.c.assign(64, 0.0f);
    for (std::size_t n = 0; n < 8; ++n) {
      for (std::size_t i = 0; i < k; ++i) tile.b[16 * i + n] = record.b[n * k + i];
      for (std::size_t r = 0; r < 4; ++r) tile.c[16 * r + n] = record.c[(begin + r) * 8 + n];
    }
    const std::vector<float> got = Emulate(GetParam(), profile, tile);
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t n = 0; n < 8; ++n) {
        ASSERT_EQ(BitsOf(got[16 * r + n]), BitsOf(record.d[(begin + r) * 8 + n]))
            << "kind " << record.kind << " distribution " << record.distribution << " row " << begin + r;
      }
      for (std::size_t n = 8; n < 16; ++n) ASSERT_EQ(BitsOf(got[16 * r + n]), 0u);
    }
  }
};

TEST_P(MmaEmulateTest, AllH200OutputsAreReproduced) { ExpectOracle(ReadMmaOracle()); }

TEST_P(MmaEmulateTest, H200EdgeCasesAreReproduced) { ExpectOracle(ReadMmaEdgeOracle()); }

INSTANTIATE_TEST_SUITE_P(Isa, MmaEmulateTest, testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(NameOf(isa.param)); });

// Random tiles of one kind of trouble each.
class TileSource {
 public:
  explicit TileSource(unsigned seed) : random_(seed) {}

  Tile Next() {
    Tile tile;
    tile.format = Chance(2) ? MmaFormat::kF16 : MmaFormat::kBF16;
    tile.rows = 1 + Below(4);
    tile.k = Chance(4) ? 1 + Below(40) : 16;
    kind_ = Below(8);
    for (std::int64_t i = 0; i < tile.rows * tile.k; ++i) tile.a.push_back(Operand(tile.format));
    for (std::int64_t i = 0; i < 16 * tile.k; ++i) tile.b.push_back(Operand(tile.format));
    for (int i = 0; i < 16 * tile.rows; ++i) tile.c.push_back(Accumulator());
    if (kind_ == 3) Cancel(&tile);
    return tile;
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool Chance(int n) { return Below(n) == 0; }

  // Sign, exponent in [low, high] as far as the format has it (0 below: subnormal), random mantissa.
  std::uint16_t Pattern(MmaFormat format, int low, int high) {
    const bool f16 = format == MmaFormat::kF16;
    const int bits = f16 ? 10 : 7, bias = f16 ? 15 : 127, top = f16 ? 30 : 254;
    const int stored = std::min(std::max(low + Below(high - low + 1) + bias, 0), top);
    return static_cast<std::uint16_t>((Below(2) << 15) | (stored << bits) | Below(1 << bits));
  }

  std::uint16_t Operand(MmaFormat format) {
    switch (kind_) {
      case 0:  // anything finite
        return Pattern(format, -127, 127);
      case 1:  // subnormals and zeros
        return Chance(3) ? static_cast<std::uint16_t>(Below(2) << 15)
                         : Pattern(format, -140, Chance(2) ? -100 : -12);
      case 2:  // largest significands
        return static_cast<std::uint16_t>(Pattern(format, 0, 0) | (format == MmaFormat::kF16 ? 0x3ff : 0x7f));
      case 4:  // around the overflow of fp32 for bf16, of the significand sums for fp16
        return Pattern(format, 60, 64);
      case 5:  // tiny
        return Pattern(format, -90, -55);
      case 6:  // sparse powers of two
        return Chance(3) ? static_cast<std::uint16_t>(Pattern(format, -14, 15) &
                                                      (format == MmaFormat::kF16 ? 0xfc00 : 0xff80))
                         : static_cast<std::uint16_t>(Below(2) << 15);
      default:
        return Pattern(format, -4, 4);
    }
  }

  float Accumulator() {
    const auto sign = static_cast<std::uint32_t>(Below(2)) << 31;
    const auto mantissa = static_cast<std::uint32_t>(random_() & 0x7fffffu);
    if (Chance(6)) return std::bit_cast<float>(sign);
    if (Chance(40)) return std::bit_cast<float>(sign | 0x7f800000u);
    int low = -20, high = 20;
    if (kind_ == 0) low = -127, high = 127;
    if (kind_ == 1 || kind_ == 5) low = -127, high = -90;
    if (kind_ == 2) low = 0, high = 5;
    if (kind_ == 4) low = 100, high = 127;
    const auto stored = static_cast<std::uint32_t>(low + Below(high - low + 1) + 127);
    return std::bit_cast<float>(sign | (stored << 23) | (kind_ == 2 ? 0x7fffffu : mantissa));
  }

  // Every other product is the negative of the one before it, except for the last bits of some.
  void Cancel(Tile* tile) {
    for (std::int64_t k = 0; k + 1 < tile->k; k += 2) {
      for (std::int64_t r = 0; r < tile->rows; ++r) {
        tile->a[static_cast<std::size_t>(r * tile->k + k + 1)] =
            tile->a[static_cast<std::size_t>(r * tile->k + k)] ^ 0x8000;
      }
      for (std::int64_t n = 0; n < 16; ++n) {
        const std::uint16_t flipped = Chance(3) ? 1 : 0;
        tile->b[static_cast<std::size_t>(16 * (k + 1) + n)] =
            tile->b[static_cast<std::size_t>(16 * k + n)] ^ flipped;
      }
    }
  }

  std::mt19937 random_;
  int kind_ = 0;
};

// 10^7 outputs with LOCKSTEP_LONG_TESTS set, 10^6 without.
TEST(MmaEmulateRandomTest, EveryBuildEqualsTheLiteralRule) {
  const int tiles = std::getenv("LOCKSTEP_LONG_TESTS") != nullptr ? 250000 : 25000;
  TileSource source(77);
  for (int i = 0; i < tiles; ++i) {
    const Tile tile = source.Next();
    const Profile profile =
        i % 2 == 0 ? Profile::kSm90 : kAllProfiles[static_cast<std::size_t>(i / 2 % 7)];
    const std::vector<float> expected = Literal(profile, tile);
    for (Isa isa : SupportedIsas()) {
      const std::vector<float> got = Emulate(isa, profile, tile);
      for (std::size_t at = 0; at < expected.size(); ++at) {
        ASSERT_EQ(BitsOf(got[at]), BitsOf(expected[at]))
            << NameOf(isa) << " " << NameOf(profile) << " tile " << i << " output " << at << ": " << got[at]
            << " " << expected[at];
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
