// The indexer, every implementation, against the loops of docs/numerics.md section 6, Index score and
// Selection, with the reference's quantizers, products and total order, bit for bit; and the distance of scores
// from truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/index_select/index_select_page_test.h"
#include "kernels/index_select/top_k.h"
#include "kernels/testing/comparison.h"
#include "kernels/testing/truth.h"
#include "reference/arithmetic.h"
#include "reference/selection.h"

namespace lockstep::kernels {
namespace {

constexpr FormatKind kKeyFormats[] = {FormatKind::kFp4E8M0, FormatKind::kHadamardFp4, FormatKind::kBf16};

// --- tests
// -----------------------------------------------------------------------------------------------------------

TEST(IndexSelect, HasTheBitsOfThePageInTheModelsSizes) {
  const std::vector<std::int64_t> visible = {0, 1, 63, 64, 65, 300, 517};
  for (const Recipe recipe : kRecipes) {
    ExpectPage({.visible = visible, .heads = 32, .dim = 128, .top_k = 64, .page_shift = 5, .recipe = recipe});
    ExpectPage({.visible = visible,
                .heads = 64,
                .dim = 128,
                .format = FormatKind::kHadamardFp4,
                .top_k = 100,
                .page_shift = 6,
                .recipe = recipe});
  }
}

TEST(IndexSelect, HasTheBitsOfThePageInTheBenchmarksSizes) {
  for (const auto& [name, shape] : ModelIndexers()) ExpectPage(shape);
  for (const bool source : {true, false}) ExpectPage(V41Candidates(3000, source));
}

TEST(IndexSelect, EveryProfileWithoutQuantizers) {
  for (const Profile profile : {Profile::kSm90, Profile::kSm90K8, Profile::kSm80, Profile::kSm75,
                                Profile::kSm70, Profile::kSm70Jit, Profile::kFma}) {
    for (const Recipe recipe : kRecipes)
      ExpectPage({.visible = {40, 9},
                  .heads = 8,
                  .dim = 64,
                  .format = FormatKind::kBf16,
                  .top_k = 7,
                  .recipe = recipe},
                 profile);
  }
}

TEST(IndexSelect, OddSizes) {
  for (const FormatKind format : kKeyFormats) {
    for (const int heads : {1, 3, 8, 17, 33}) {
      for (const int dim : {2, 16, 32, 64, 96, 128}) {
        if (format == FormatKind::kHadamardFp4 && dim == 96) continue;  // powers of two alone
        ExpectPage({.visible = {5, 19, 1},
                    .heads = heads,
                    .dim = dim,
                    .format = format,
                    .top_k = 4,
                    .page_shift = heads % 3});
      }
    }
  }
}

// More keys than a work item scores; lists as long as the visible keys and longer.
TEST(IndexSelect, LongContexts) {
  for (const int top_k : {1, 512, 6000}) {
    ExpectPage({.visible = {5000}, .heads = 4, .dim = 32, .top_k = top_k, .page_shift = 8});
    ExpectPage({.visible = {5000, 4097, 511, 512, 513},
                .heads = 4,
                .dim = 32,
                .top_k = top_k,
                .page_shift = 7,
                .recipe = Recipe::kLattice});
  }
}

// As many rows as make a device share unpacked keys among rows of a sequence, and as many entries as make it choose in rounds.
TEST(IndexSelect, ManyRowsAndRounds) {
  for (const bool one_sequence : {true, false}) {
    for (const FormatKind format : kKeyFormats) {
      std::vector<std::int64_t> visible;
      for (std::int64_t t = 0; t < 70; ++t) visible.push_back(5 * t);
      ExpectPage({.visible = visible, .heads = 17, .dim = 64, .format = format, .top_k = 50, .one_sequence = one_sequence});
    }
  }
  for (const Recipe recipe : {Recipe::kNormal, Recipe::kLattice}) {
    ExpectPage({.visible = {17000, 8192, 8193, 100}, .heads = 2, .dim = 32, .top_k = 300, .page_shift = 8, .recipe = recipe});
    ExpectPage({.visible = {17100, 16384},
                .heads = 1,
                .dim = 32,
                .top_k = 512,
                .page_shift = 8,
                .candidate_block = 2,
                .candidate_top_blocks = 1000,
                .recipe = recipe});
  }
}

// Many rows of the models' channels, whose heads a device multiplies side by side.
TEST(IndexSelect, ManyRowsOfTheModelsChannels) {
  std::vector<std::int64_t> visible;
  for (std::int64_t t = 0; t < 70; ++t) visible.push_back(5 * t % 251);
  for (const bool one_sequence : {true, false}) {
    for (const FormatKind format : {FormatKind::kFp4E8M0, FormatKind::kHadamardFp4}) {
      for (const int heads : {17, 32, 33, 64}) {
        for (const Recipe recipe : kRecipes) {
          ExpectPage({.visible = visible, .heads = heads, .dim = 128, .format = format, .top_k = 50, .page_shift = 3, .one_sequence = one_sequence, .recipe = recipe});
        }
      }
    }
  }
}

// Scales whose product rounds or vanishes, and rows without such scales beside them.
TEST(IndexSelect, ManyRowsOfUnusualScales) {
  for (const int heads : {32, 64}) {
    IndexProblem p({.visible = std::vector<std::int64_t>(64, 150), .heads = heads, .dim = 128, .top_k = 20, .page_shift = 4, .one_sequence = true});
    constexpr int kExponents[] = {0, -90, 0, 62, -120};
    for (std::size_t i = 0; i < p.q_THI.size(); ++i) {
      if (i / 32 % 7 == 0) p.q_THI[i] = FloatToBF16(std::ldexp(BF16ToFloat(p.q_THI[i]), kExponents[i / static_cast<std::size_t>(heads * 128) % 5]));
    }
    for (std::int64_t j = 0; j < 150; ++j) {
      std::byte* scales = p.keys[0].data() + p.Keys(0).RowOffset(j) + 64;
      if (j / 16 % 2 == 0) scales[j % 4] = static_cast<std::byte>(j % 3 == 0 ? 66 : j % 3 == 1 ? 30 : 175);
    }
    ExpectEverywhere(p, PageOf(p, Profile::kSm90), Profile::kSm90, "unusual scales");
  }
}

// All scores equal: the oldest entries.
TEST(IndexSelect, EqualScoresGoToTheSmallerEntry) {
  for (const FormatKind format : kKeyFormats) {
    IndexProblem p({.visible = {100, 700}, .heads = 4, .dim = 32, .format = format, .top_k = 30});
    std::fill_n(p.weight_TH.begin(), 8, std::uint16_t{0});
    const IndexProblem::Output expected = PageOf(p, Profile::kSm90);
    for (std::int32_t i = 0; i < 60; ++i) EXPECT_EQ(std::get<0>(expected)[static_cast<std::size_t>(i)], i % 30);
    ExpectEverywhere(p, expected, Profile::kSm90, "ties");
  }
}

TEST(IndexSelect, CandidateBlocksOfASource) {
  for (const Recipe recipe : kRecipes) {
    for (const int top_blocks : {1, 5, 64}) {
      ExpectPage({.visible = {0, 1, 8, 9, 160, 333},
                  .heads = 8,
                  .dim = 64,
                  .top_k = 20,
                  .candidate_block = 8,
                  .candidate_top_blocks = top_blocks,
                  .recipe = recipe});
      ExpectPage({.visible = {77, 3},
                  .heads = 8,
                  .dim = 64,
                  .top_k = 20,
                  .candidate_block = 3,
                  .candidate_top_blocks = top_blocks,
                  .recipe = recipe});
    }
  }
}

TEST(IndexSelect, LaterSourcesChooseFromTheKeptBlocks) {
  for (const FormatKind format : kKeyFormats) {
    for (const Recipe recipe : kRecipes) {
      for (const int top_k : {1, 12, 200}) {
        ExpectPage({.visible = {1, 8, 9, 160, 2200},
                    .heads = 8,
                    .dim = 64,
                    .format = format,
                    .top_k = top_k,
                    .candidate_block = 8,
                    .candidate_top_blocks = 16,
                    .candidate_source = false,
                    .recipe = recipe});
      }
    }
  }
}

TEST(IndexSelect, ANanMarksItsRowAlone) {
  for (const FormatKind format : kKeyFormats) {
    IndexProblem p({.visible = {20, 20, 20}, .heads = 4, .dim = 32, .format = format, .top_k = 5});
    const IndexProblem::Output expected = PageOf(p, Profile::kSm90);
    p.weight_TH[4 + 2] = kPoisonBF16;
    for (const Implementation& implementation : Implementations(Profile::kSm90)) {
      const IndexProblem::Output output = RunOn(implementation, p);
      for (std::size_t t = 0; t < 3; ++t) {
        EXPECT_EQ(std::get<1>(output)[t], t == 1 ? -1 : 5) << implementation;
        for (std::size_t i = 5 * t; t != 1 && i < 5 * t + 5; ++i)
          EXPECT_EQ(std::get<0>(output)[i], std::get<0>(expected)[i]) << implementation;
      }
    }
  }
}

// Scores beyond the quantizers: exact products of the codes, so only the folds' roundings remain.
TEST(IndexSelect, ScoresAreNearTruth) {
  for (const FormatKind format : kKeyFormats) {
    const IndexProblem p({.visible = {50}, .heads = 16, .dim = 128, .format = format, .top_k = 8});
    const IndexProblem::Output output = RunOn(Implementations(Profile::kSm90).back(), p);
    const std::vector<float> weights = Weights(p, 0);
    std::vector<Approximation> expected;
    for (std::int64_t j = 0; j < 50; ++j) {
      const QuantizedVector key = StoredKey(p, 0, j);
      double score = 0, terms = 0, dots = 0;
      for (std::int64_t h = 0; h < 16; ++h) {
        const bool quantized = format != FormatKind::kBf16;
        const QuantizedVector q =
            quantized ? QuantizeQuery(p, 0, h) : QuantizedVector{Widened<float>(p.q_THI, h * 128, 128), {}};
        double d = 0, products = 0;
        for (std::size_t i = 0; i < 128; ++i) {
          const double scale = quantized ? static_cast<double>(q.scales[i / 32] * key.scales[i / 32]) : 1.0;
          const double product = scale * static_cast<double>(q.codes[i]) * static_cast<double>(key.codes[i]);
          d += product, products += std::fabs(product);
        }
        const double w = static_cast<double>(weights[static_cast<std::size_t>(h)]);
        score += std::max(d, 0.0) * w;
        terms += std::max(d, 0.0) * std::fabs(w);
        dots += products * std::fabs(w) * (quantized ? Gamma(4) : reference::ChainBound(Profile::kSm90, 128));
      }
      expected.push_back(
          {score, dots + Gamma(1 + 4) * (terms + dots)});  // the product with the weight, the fold of 16
    }
    EXPECT_TRUE(Trustworthy(std::get<4>(output), 50));
    ExpectWithin(std::get<4>(output), expected, format == FormatKind::kBf16 ? 20000 : 1000);
  }
}

// --- the choice itself
// -----------------------------------------------------------------------------------------------

std::vector<std::int64_t> Select(const std::vector<float>& scores, std::int64_t k) {
  std::vector<std::uint64_t> keys(scores.size());
  std::vector<std::int32_t> out(scores.size());
  const std::int32_t n =
      SelectBest(scores.data(), nullptr, static_cast<std::int64_t>(scores.size()), k, keys.data(), out.data());
  return std::vector<std::int64_t>(out.begin(), out.begin() + std::max(n, 0));
}

TEST(SelectBest, AgreesWithTheReferencesTotalOrder) {
  for (const Recipe recipe : kRecipes) {
    Inputs inputs(52);
    for (const std::int64_t n : {1, 2, 17, 512, 3000}) {
      std::vector<float> scores = inputs.F32(n, recipe);
      scores.resize(static_cast<std::size_t>(n));
      for (const std::int64_t k : {std::int64_t{1}, (n + 1) / 2, std::max<std::int64_t>(1, n - 1), n, n + 5}) {
        EXPECT_EQ(Select(scores, k), reference::SelectTop(scores, k, "scores").indices)
            << n << " scores, best " << k;
      }
    }
  }
}

TEST(SelectBest, ZerosOfBothSignsAreEqualAndANanIsRefused) {
  EXPECT_EQ(Select({-0.0f, 0.0f, -1.0f, 0.0f}, 2), (std::vector<std::int64_t>{0, 1}));
  const std::vector<float> scores = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  std::uint64_t keys[2];
  std::int32_t out[2];
  EXPECT_EQ(SelectBest(scores.data(), nullptr, 2, 1, keys, out), -1);
}

TEST(IndexSelectContract, IdsNameFamilyAndProfileNotTheInstructionSet) {
  for (const Implementation& implementation : Implementations(Profile::kSm90))
    EXPECT_EQ(implementation.kernels().index_select.contract, "index_select/H(sm90)+I");
  for (const Implementation& implementation : Implementations(Profile::kFma))
    EXPECT_EQ(implementation.kernels().index_select.contract, "index_select/H(fma)+I");
}

}  // namespace
}  // namespace lockstep::kernels
