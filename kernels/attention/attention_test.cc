// Attention, every implementation, against the reference's contract arithmetic over the same list of keys, bit
// for bit; and the distance from truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/attention_cases.h"
#include "kernels/testing/comparison.h"
#include "kernels/testing/truth.h"
#include "reference/ops.h"
#include "reference/softmax_attention.h"

namespace lockstep::kernels {
namespace {

constexpr Profile kProfiles[] = {Profile::kSm90, Profile::kSm90K8,  Profile::kSm80, Profile::kSm75,
                                 Profile::kSm70, Profile::kSm70Jit, Profile::kFma};
constexpr FormatKind kWindowKinds[] = {FormatKind::kBf16, FormatKind::kFp8};
constexpr FormatKind kCompressedKinds[] = {FormatKind::kBf16, FormatKind::kFp8, FormatKind::kFp4E4M3};

std::string Describe(const AttentionCase& c, Profile profile) {
  std::string text = std::to_string(c.heads) + " heads of " + std::to_string(c.head_dim) + ", window " +
                     std::to_string(c.window) + ", formats " + std::to_string(static_cast<int>(c.window_kind)) +
                     " and " + std::to_string(static_cast<int>(c.compressed_kind)) +
                     (c.all_visible ? ", all visible" : "") + ", recipe " +
                     std::to_string(static_cast<int>(c.recipe)) + ", " + std::string(NameOf(profile)) +
                     "; position (selected):";
  for (const AttentionToken& token : c.tokens)
    text.append(" ")
        .append(std::to_string(token.position))
        .append(" (")
        .append(std::to_string(token.selected))
        .append(")");
  return text;
}

// The list of token t: window slots anchored at position 0, then the entries, in blocks of 64.
template <typename Real>
struct List {
  std::vector<std::vector<Real>> values;
  std::vector<bool> filled;

  void AddRow(const RowFormat& format, const std::byte* row) {
    filled.push_back(true);
    values.emplace_back();
    for (int d = 0; d < format.width; ++d)
      values.back().push_back(static_cast<Real>(RoundToBF16(StoredValue(format, row, d))));
  }
  void AddEmpty() {
    filled.push_back(false);
    values.emplace_back();
  }
  reference::KeyList<Real> Keys() const {
    reference::KeyList<Real> keys;
    for (std::size_t i = 0; i < values.size(); ++i) keys.rows.push_back(filled[i] ? values[i].data() : nullptr);
    return keys;
  }
};

template <typename Real>
List<Real> ListOf(const AttentionProblem& p, std::int64_t t) {
  const AttentionToken& token = p.tokens[static_cast<std::size_t>(t)];
  List<Real> list;
  for (std::int64_t slot = p.FirstPosition(token) / 64 * 64; slot < token.position / 64 * 64 + 64; ++slot) {
    if (slot < p.FirstPosition(token) || slot > token.position)
      list.AddEmpty();
    else
      list.AddRow(p.window_format(), p.WindowRow(t, slot));
  }
  for (const std::int64_t entry : p.Entries(t)) list.AddRow(p.compressed_format(), p.CompressedRow(t, entry));
  while (list.values.size() % 64 != 0) list.AddEmpty();
  return list;
}

std::vector<float> Sinks(const AttentionProblem& p) {
  return std::vector<float>(p.sink_H.begin(), p.sink_H.begin() + p.heads);
}

template <typename Real>
std::vector<Real> ReferenceOf(const AttentionProblem& p, Profile profile, std::int64_t t,
                              const std::vector<float>& sinks) {
  const std::int64_t width = std::int64_t{p.heads} * p.head_dim;
  const std::vector<Real> q = Widened<Real>(p.q_THD, t * width, width);
  std::vector<Real> out(static_cast<std::size_t>(width));
  const List<Real> list = ListOf<Real>(p, t);
  reference::AttendHeads(profile, list.Keys(), q.data(), sinks, p.head_dim, out.data());
  return out;
}

AttentionProblem::Output ReferenceOf(const AttentionProblem& p, Profile profile) {
  AttentionProblem::Output expected = p.Start();
  for (std::int64_t t = 0; t < p.rows(); ++t) {
    const std::vector<float> out = ReferenceOf<float>(p, profile, t, Sinks(p));
    std::transform(out.begin(), out.end(), std::get<0>(expected).begin() + t * p.heads * p.head_dim,
                   FloatToBF16);
  }
  return expected;
}

void ExpectReference(const AttentionCase& c, Profile profile = Profile::kSm90) {
  const AttentionProblem problem(c);
  const AttentionProblem::Output expected = ReferenceOf(problem, profile);
  EXPECT_TRUE(Trustworthy(std::get<0>(expected), c.rows() * c.heads * c.head_dim)) << Describe(c, profile);
  ExpectEverywhere(problem, expected, profile, Describe(c, profile));
}

// Window and selection of every length around a block, the step beginning anywhere.
const std::vector<AttentionToken> kTokens = {{.position = 0},
                                             {.position = 1, .in_step = 2, .stored = 1, .selected = 1},
                                             {.position = 63, .in_step = 10, .stored = 90, .selected = 63},
                                             {.position = 64, .in_step = 64, .stored = 64, .selected = 64},
                                             {.position = 130, .in_step = 1000, .stored = 100, .selected = 65},
                                             {.position = 499999, .in_step = 3, .stored = 300, .selected = 5}};

TEST(Attention, HasTheBitsOfTheReferenceInTheModelsSizes) {
  for (const FormatKind compressed : kCompressedKinds) {
    ExpectReference({.tokens = {{.position = 7000, .stored = 900, .selected = 512},
                                {.position = 100, .in_step = 5, .stored = 40, .selected = 40}},
                     .heads = 3,
                     .head_dim = 512,
                     .window = 128,
                     .window_kind = FormatKind::kFp8,
                     .compressed_kind = compressed,
                     .page_shift = 6});
  }
}

TEST(Attention, HasTheBitsOfTheReferenceInTheBenchmarksSizes) {
  for (const std::int64_t selected : {0, 512}) ExpectReference(V41Attention(1, selected));
}

TEST(Attention, EveryProfileAndFormat) {
  for (const Profile profile : kProfiles) {
    for (const FormatKind window : kWindowKinds) {
      for (const FormatKind compressed : kCompressedKinds) {
        ExpectReference({.tokens = kTokens,
                         .heads = 2,
                         .head_dim = 32,
                         .window = 20,
                         .window_kind = window,
                         .compressed_kind = compressed},
                        profile);
      }
    }
  }
}

TEST(Attention, EveryRecipe) {
  for (const Recipe recipe : kRecipes) {
    for (const Profile profile : {Profile::kSm90, Profile::kFma})
      ExpectReference({.tokens = kTokens, .heads = 2, .head_dim = 48, .window = 70, .recipe = recipe}, profile);
  }
}

TEST(Attention, AnyHeadsAndWidth) {
  for (const int heads : {1, 15, 16, 17, 64}) {
    for (const int head_dim : {2, 16, 20, 33, 64}) {
      ExpectReference({.tokens = {{.position = 70, .stored = 20, .selected = 9}, {.position = 3}},
                       .heads = heads,
                       .head_dim = head_dim,
                       .window = 12});
    }
  }
  ExpectReference({.tokens = {{.position = 5}}, .heads = 18, .head_dim = 500, .window = 4});
}

TEST(Attention, AnyWindow) {
  for (const int window : {1, 2, 63, 64, 65, 128, 130, 200}) {
    for (const std::int64_t more_ring_rows : {0, 1, 300}) {
      AttentionCase c = {
          .heads = 1, .head_dim = 16, .window = window, .page_shift = 0, .more_ring_rows = more_ring_rows};
      c.tokens.clear();
      for (const std::int64_t position : {0, 62, 63, 64, 65, 127, 128, 129, 191, 192, 1000}) {
        for (const std::int64_t in_step : {1, 2, 77})
          c.tokens.push_back({.position = position, .in_step = in_step});
      }
      ExpectReference(c);
    }
  }
}

// As many rows as make a device give each a block of its own, at every place of the window and of the list's blocks.
TEST(Attention, ManyRows) {
  std::vector<AttentionToken> tokens;
  for (std::int64_t i = 0; i < 40; ++i)
    tokens.push_back({.position = 37 * i, .in_step = 1 + i % 5, .stored = 10 + 5 * i, .selected = 5 * i});
  for (const bool all_visible : {false, true}) {
    for (const FormatKind compressed : kCompressedKinds) {
      ExpectReference({.tokens = tokens,
                       .heads = 3,
                       .head_dim = 80,
                       .window = 70,
                       .window_kind = FormatKind::kFp8,
                       .compressed_kind = compressed,
                       .all_visible = all_visible});
    }
  }
  tokens.resize(33);
  ExpectReference({.tokens = tokens, .heads = 70, .head_dim = 33, .window = 128});
  tokens.assign(33, {.position = 1000, .stored = 600, .selected = 200});
  ExpectReference({.tokens = tokens,
                   .heads = 2,
                   .head_dim = 512,
                   .window = 128,
                   .window_kind = FormatKind::kFp8,
                   .compressed_kind = FormatKind::kFp4E4M3});
}

// The models' width, more heads than a block has, windows and lists of every length.
TEST(Attention, ManyWideRows) {
  std::vector<AttentionToken> tokens;
  for (std::int64_t i = 0; i < 33; ++i) tokens.push_back({.position = 11 * i, .in_step = 1 + i % 5, .stored = 10 + 5 * i, .selected = 4 * i});
  for (const FormatKind compressed : kCompressedKinds) {
    ExpectReference({.tokens = tokens,
                     .heads = compressed == FormatKind::kFp8 ? 66 : 5,
                     .head_dim = 512,
                     .window = 128,
                     .window_kind = FormatKind::kFp8,
                     .compressed_kind = compressed,
                     .all_visible = compressed == FormatKind::kBf16});
  }
}

// Heads that turn back: the reference's inverse RoPE of what they would be without, by few rows and by many.
TEST(Attention, TurnsHeadsBack) {
  constexpr int kRopeDim = 32;
  const reference::RopeTable angles(10000.0, YarnConfig{}, kRopeDim);
  for (const std::size_t rows : {1u, 5u, 40u}) {
    for (const int head_dim : {kRopeDim, 80}) {
      AttentionCase c = {.heads = 5, .head_dim = head_dim, .window = 70, .window_kind = FormatKind::kFp8, .compressed_kind = FormatKind::kFp8};
      c.tokens.clear();
      for (std::size_t t = 0; t < rows; ++t) c.tokens.push_back({.position = static_cast<std::int64_t>(29 * t), .stored = 100, .selected = 70});
      AttentionProblem p(c);
      AttentionProblem::Output expected = ReferenceOf(p, Profile::kSm90);
      p.rope_dim = kRopeDim;
      for (std::int64_t position = 0; position <= p.tokens.back().position; ++position) {
        std::vector<float> cosine, sine;
        angles.CosSin(position, &cosine, &sine);
        p.rope_table.insert(p.rope_table.end(), cosine.begin(), cosine.end());
        p.rope_table.insert(p.rope_table.end(), sine.begin(), sine.end());
      }
      for (std::size_t h = 0; h < rows * 5; ++h) {
        const auto begin = static_cast<std::int64_t>(h) * head_dim;
        std::vector<float> x = Widened<float>(std::get<0>(expected), begin, head_dim);
        reference::ApplyRope<reference::Contract>(angles, p.tokens[h / 5].position, reference::RopeDirection::kInverse, x.data(), head_dim);
        std::transform(x.begin(), x.end(), std::get<0>(expected).begin() + begin, FloatToBF16);
      }
      ExpectEverywhere(p, expected, Profile::kSm90, Describe(c, Profile::kSm90) + ", turned back");
    }
  }
}

// V4's layers of ratio 128 take every entry there is.
TEST(Attention, AllVisibleEntries) {
  for (const std::int64_t visible : {0, 1, 64, 65, 400}) {
    ExpectReference({.tokens = {{.position = 9, .stored = visible + 3, .selected = visible},
                                {.position = 700, .stored = 10, .selected = 10}},
                     .heads = 4,
                     .head_dim = 32,
                     .window = 16,
                     .window_kind = FormatKind::kFp8,
                     .compressed_kind = FormatKind::kFp8,
                     .all_visible = true});
  }
}

// One row whose list ends with a block of 64 slots or has one slot behind it, on both sides of what kernels hold at a time and far beyond.
TEST(Attention, ListsOfEveryNumberOfChunks) {
  for (const std::int64_t blocks : {6, 12, 18, 24, 33, 70}) {
    for (const std::int64_t selected : {64 * (blocks - 2), 64 * (blocks - 2) + 1}) {
      for (const bool all_visible : {false, true}) {
        ExpectReference({.tokens = {{.position = 1000, .stored = selected + 30, .selected = selected}},
                         .heads = 9,
                         .head_dim = 48,
                         .window = 64,
                         .window_kind = FormatKind::kFp8,
                         .compressed_kind = FormatKind::kFp8,
                         .all_visible = all_visible});
      }
    }
  }
}

// Queries of zero: every weight is one and, with a sink that weighs nothing, the result the mean of the values;
// of small integers, and as many of them as a power of two, exactly.
TEST(Attention, EqualScoresGiveTheMean) {
  for (const Profile profile : kProfiles) {
    AttentionProblem p({.tokens = {{.position = 200, .stored = 300, .selected = 192},
                                   {.position = 63, .stored = 64, .selected = 64}},
                        .heads = 2,
                        .head_dim = 48,
                        .window = 64,
                        .recipe = Recipe::kLattice});
    std::fill_n(p.q_THD.begin(), 2 * 2 * 48, std::uint16_t{0});
    std::fill_n(p.sink_H.begin(), 2, -1000.0f);
    AttentionProblem::Output expected = p.Start();
    for (std::int64_t t = 0; t < 2; ++t) {
      const List<double> list = ListOf<double>(p, t);
      for (std::size_t d = 0; d < 2 * 48; ++d) {
        double sum = 0, count = 0;
        for (std::size_t i = 0; i < list.values.size(); ++i)
          if (list.filled[i]) sum += list.values[i][d % 48], ++count;
        std::get<0>(expected)[static_cast<std::size_t>(t) * 2 * 48 + d] =
            FloatToBF16(static_cast<float>(sum / count));
      }
    }
    ExpectEverywhere(p, expected, profile, "mean");
  }
}

// The error of one head: scores, weights (rounded to bf16 for the values alone), the products with the values,
// the rescaling of every block, the division.
struct HeadErrors {
  double score = 0;   // absolute, of a score and of the largest
  double spread = 0;  // largest score minus smallest

  double Bound(std::int64_t blocks, double terms) const {
    const double weight = std::expm1(2 * score) + Gamma(spread + kExpRoundings);
    const double rescale =
        static_cast<double>(blocks) * (std::expm1(2 * score) + Gamma(spread + kExpRoundings + 1));
    const double values = static_cast<double>(blocks) * reference::ChainBound(Profile::kSm90, 64);
    const double denominator = weight + rescale + Gamma(7 + static_cast<double>(blocks) + 1 + kExpRoundings);
    return terms * (weight + reference::kUnitBf16 + rescale + values + denominator + Gamma(1)) *
           (1 + 2 * denominator);
  }
};

TEST(Attention, IsNearTruth) {
  AttentionProblem p({.tokens = {{.position = 200, .stored = 300, .selected = 150},
                                 {.position = 40, .stored = 10, .selected = 10}},
                      .heads = 4,
                      .head_dim = 64,
                      .window = 50});
  std::fill_n(p.sink_H.begin(), 4, 4.0f);
  const auto [out] = RunOn(Implementations(Profile::kSm90).back(), p);
  EXPECT_TRUE(Trustworthy(out, 2 * 4 * 64));
  std::vector<Approximation> expected;
  std::size_t without_sink = 0;
  for (std::int64_t t = 0; t < 2; ++t) {
    const List<double> list = ListOf<double>(p, t);
    const std::vector<double> truth = ReferenceOf<double>(p, Profile::kSm90, t, Sinks(p));
    const std::vector<double> wrong =
        ReferenceOf<double>(p, Profile::kSm90, t, std::vector<float>(4, -1000.0f));
    for (std::size_t h = 0; h < 4; ++h) {
      const std::vector<double> q = Widened<double>(p.q_THD, t * 256 + static_cast<std::int64_t>(h) * 64, 64);
      HeadErrors errors;
      std::vector<double> score(list.values.size(), -INFINITY);
      double top = static_cast<double>(p.sink_H[h]), low = top;
      for (std::size_t i = 0; i < score.size(); ++i) {
        if (!list.filled[i]) continue;
        double s = 0, products = 0;
        for (std::size_t d = 0; d < 64; ++d)
          s += q[d] * list.values[i][d], products += std::fabs(q[d] * list.values[i][d]);
        score[i] = s / 8;
        errors.score =
            std::max(errors.score, (reference::ChainBound(Profile::kSm90, 64) + Gamma(1)) * products / 8);
        top = std::max(top, score[i]), low = std::min(low, score[i]);
      }
      errors.spread = top - low;
      double weights = std::exp(static_cast<double>(p.sink_H[h]) - top);
      for (const double s : score) weights += std::exp(s - top);
      for (std::size_t d = 0; d < 64; ++d) {
        double terms = 0;
        for (std::size_t i = 0; i < score.size(); ++i)
          if (list.filled[i]) terms += std::exp(score[i] - top) * std::fabs(list.values[i][d]);
        const auto blocks = static_cast<std::int64_t>(score.size() / 64);
        expected.push_back(RoundedToBF16({truth[h * 64 + d], errors.Bound(blocks, terms / weights)}));
        without_sink += std::fabs(wrong[h * 64 + d] - truth[h * 64 + d]) > expected.back().bound;
      }
    }
  }
  ExpectWithin(out, expected, 64);
  EXPECT_GT(2 * without_sink, expected.size()) << "the bounds do not see a sink that is left out";
}

TEST(AttentionContract, IdsNameTheProfileNotTheInstructionSet) {
  for (const Implementation& implementation : Implementations(Profile::kSm90))
    EXPECT_EQ(implementation.kernels().attention.contract, "attention/H(sm90)");
  for (const Implementation& implementation : Implementations(Profile::kFma))
    EXPECT_EQ(implementation.kernels().attention.contract, "attention/H(fma)");
}

}  // namespace
}  // namespace lockstep::kernels
