// Few rows of many entries, which a device's blocks share, against the loops of docs/numerics.md section 6, Index score and Selection, bit for bit: lengths at
// both sides of every limit, and keys that are equal in as many of their bits as decide which way the choice goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/index_select/index_select_page_test.h"

namespace lockstep::kernels {
namespace {

TEST(LongIndexSelect, LengthsAroundTheLimits) {
  for (const std::int64_t n : {2047, 2048, 2049, 3071, 3072, 3073, 4096, 4097, 8192, 8193, 8449, 16384, 16385}) {
    for (const Recipe recipe : kRecipes) ExpectPage({.visible = {n}, .heads = 3, .dim = 32, .top_k = 300, .page_shift = 5, .recipe = recipe});
  }
}

TEST(LongIndexSelect, EveryShapeOfHeads) {
  for (const FormatKind format : {FormatKind::kFp4E8M0, FormatKind::kHadamardFp4}) {
    for (const int heads : {1, 16, 17, 64}) {
      for (const int dim : {32, 64, 128}) ExpectPage({.visible = {4500, 130}, .heads = heads, .dim = dim, .format = format, .top_k = 100, .page_shift = heads % 3 + 3});
    }
  }
  ExpectPage({.visible = {4500}, .heads = 4, .dim = 96, .top_k = 100, .page_shift = 6});
  ExpectPage({.visible = {4500}, .heads = 4, .dim = 2, .top_k = 100, .page_shift = 6});
}

TEST(LongIndexSelect, ShortRowsBesideLongOnes) {
  for (const Recipe recipe : kRecipes) {
    for (const int top_k : {1, 64, 512, 6000}) {
      ExpectPage({.visible = {9000, 0, 1, 63, 64, 65, 513, 4500}, .heads = 4, .dim = 32, .top_k = top_k, .page_shift = 4, .recipe = recipe});
    }
    ExpectPage({.visible = {20, 5000, 700}, .heads = 4, .dim = 32, .top_k = 512, .page_shift = 4, .one_sequence = true, .recipe = recipe});
  }
  ExpectPage({.visible = std::vector<std::int64_t>(9, 4100), .heads = 4, .dim = 32, .top_k = 100, .page_shift = 6, .one_sequence = true});
}

// As many entries as a block of eight rows may have on a device of 132 multiprocessors, and more.
TEST(LongIndexSelect, TheLongestStretchOfABlock) {
  for (const std::int64_t n : {262144, 262145}) ExpectPage({.visible = {n, 5000, 5000, 0, 0, 0, 0, 40}, .heads = 1, .dim = 32, .top_k = 700, .page_shift = 10});
}

TEST(LongIndexSelect, KeptBlocksOfManyEntries) {
  for (const Recipe recipe : kRecipes) {
    ExpectPage({.visible = {9003, 5000, 17},
                .heads = 8,
                .dim = 64,
                .top_k = 500,
                .candidate_block = 8,
                .candidate_top_blocks = 600,
                .candidate_source = false,
                .recipe = recipe});
  }
}

// Scores that are chosen: the sum of three E2M1 values (as codes) times 1, 2^-8 and 2^-18, over 16.
using Level = std::array<int, 3>;

IndexProblem LevelProblem(std::int64_t visible, int top_k, const std::function<Level(std::int64_t)>& level) {
  IndexProblem p({.visible = {visible}, .heads = 2, .dim = 128, .top_k = top_k, .page_shift = 6});
  std::fill_n(p.q_THI.begin(), 256, std::uint16_t{0});
  for (int block = 0; block < 3; ++block) p.q_THI[static_cast<std::size_t>(32 * block)] = FloatToBF16(1.0f);
  p.weight_TH[0] = FloatToBF16(1.0f);
  p.weight_TH[1] = 0;
  constexpr int kExponents[] = {0, -8, -18, 0};
  for (std::int64_t j = 0; j < visible; ++j) {
    std::byte* row = p.keys[0].data() + p.Keys(0).RowOffset(j);
    std::fill_n(row, 64, std::byte{0});
    const Level codes = level(j);
    for (int block = 0; block < 3; ++block) row[16 * block] = static_cast<std::byte>(codes[static_cast<std::size_t>(block)]);
    for (int block = 0; block < 4; ++block) row[64 + block] = static_cast<std::byte>(127 + kExponents[block]);
  }
  return p;
}

void ExpectLevels(const std::string& what, std::int64_t visible, int top_k, const std::function<Level(std::int64_t)>& level) {
  const IndexProblem p = LevelProblem(visible, top_k, level);
  ExpectEverywhere(p, PageOf(p, Profile::kSm90), Profile::kSm90, what);
}

// Whether j is one of `some` entries of `all`, which lie everywhere.
bool IsOneOf(std::int64_t j, std::int64_t some, std::int64_t all) { return (j * 2897) % all < some; }

TEST(LongIndexSelect, WhatTheFirstBitsDecide) {
  constexpr std::int64_t kAll = 5003;  // a prime
  ExpectLevels("just the upper ones", kAll, 512, [](std::int64_t j) -> Level { return {IsOneOf(j, 512, kAll) ? 6 : 4, 0, 0}; });
  ExpectLevels("one less than the upper ones", kAll, 511, [](std::int64_t j) -> Level { return {IsOneOf(j, 512, kAll) ? 6 : 4, 0, 0}; });
  ExpectLevels("one of the lower ones", kAll, 513, [](std::int64_t j) -> Level { return {IsOneOf(j, 512, kAll) ? 6 : 4, 0, 0}; });
  ExpectLevels("all equal", kAll, 512, [](std::int64_t) -> Level { return {4, 2, 2}; });
  ExpectLevels("all zero", kAll, 512, [](std::int64_t) -> Level { return {0, 0, 0}; });
  ExpectLevels("all but one", kAll, 5002, [](std::int64_t j) -> Level { return {static_cast<int>(j % 7), 0, 0}; });
  ExpectLevels("all", kAll, 5003, [](std::int64_t j) -> Level { return {static_cast<int>(j % 7), 0, 0}; });
}

TEST(LongIndexSelect, WhatLaterBitsDecide) {
  constexpr std::int64_t kAll = 5003;
  for (const int k : {1, 499, 500, 501, 2500, 2999, 3000, 3001}) {
    const std::string best = ", best " + std::to_string(k);
    // Few have the first bits of the worst that is chosen; many have; many have the second ones too.
    ExpectLevels("700 of the first bits" + best, kAll, k, [](std::int64_t j) -> Level { return {IsOneOf(j, 700, kAll) ? 6 : 4, static_cast<int>(j % 3), static_cast<int>(j % 2)}; });
    ExpectLevels("equal ones of few" + best, kAll, k, [](std::int64_t j) -> Level { return {IsOneOf(j, 700, kAll) ? 6 : 4, 1, 1}; });
    ExpectLevels("500 of the second bits" + best, kAll, k, [](std::int64_t j) -> Level { return {6, IsOneOf(j, 500, kAll) ? 6 : 4, static_cast<int>(j % 5)}; });
    ExpectLevels("3000 of the second bits" + best, kAll, k, [](std::int64_t j) -> Level { return {6, IsOneOf(j, 3000, kAll) ? 6 : 4, static_cast<int>(j % 8)}; });
    ExpectLevels("3000 of the third bits" + best, kAll, k, [](std::int64_t j) -> Level { return {6, 6, IsOneOf(j, 3000, kAll) ? 6 : 4}; });
  }
}

// As many equal ones as the list of them has room for, and more; neighbours, and far from each other.
TEST(LongIndexSelect, ListsAroundTheirRoom) {
  constexpr std::int64_t kAll = 5003;
  for (const std::int64_t equal : {255, 256, 257, 1023, 1024, 1025, 2049}) {
    for (const std::int64_t begin : {0, 61, 2900}) {
      ExpectLevels("neighbours", kAll, 200, [&](std::int64_t j) -> Level { return {j >= begin && j < begin + equal ? 6 : 4, 3, 3}; });
    }
    ExpectLevels("far", kAll, 200, [&](std::int64_t j) -> Level { return {IsOneOf(j, equal, kAll) ? 6 : 4, static_cast<int>(j % 8), 1}; });
  }
}

// Scales whose product rounds or vanishes, of queries and of keys, beside such as have none.
TEST(LongIndexSelect, UnusualScales) {
  for (const std::int64_t n : {300, 4500}) {
    for (const int heads : {5, 32, 64}) {
      IndexProblem p({.visible = {n, n, n, 70}, .heads = heads, .dim = 128, .top_k = 40, .page_shift = 4, .one_sequence = true});
      constexpr int kExponents[] = {0, -90, 50, -120};
      for (std::size_t i = 0; i < p.q_THI.size() - kMargin; ++i) {
        if (i / 32 % 7 == 0) p.q_THI[i] = FloatToBF16(std::ldexp(BF16ToFloat(p.q_THI[i]), kExponents[i / static_cast<std::size_t>(heads * 128) % 4]));
      }
      for (std::int64_t j = 0; j < n; ++j) {
        std::byte* scales = p.keys[0].data() + p.Keys(0).RowOffset(j) + 64;
        constexpr int kKeyExponents[] = {66, 30, 175, 64, 191, 192, 63};
        if (j / 16 % 2 == 0) scales[j % 4] = static_cast<std::byte>(kKeyExponents[j % 7]);
      }
      ExpectEverywhere(p, PageOf(p, Profile::kSm90), Profile::kSm90, "unusual scales");
    }
  }
}

TEST(LongIndexSelect, ANanMarksItsRowAlone) {
  IndexProblem p({.visible = {5000, 5000, 300}, .heads = 4, .dim = 32, .top_k = 400, .page_shift = 6});
  const IndexProblem::Output expected = PageOf(p, Profile::kSm90);
  p.weight_TH[2] = kPoisonBF16;
  p.weight_TH[8 + 1] = kPoisonBF16;
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    const IndexProblem::Output output = RunOn(implementation, p);
    EXPECT_EQ(std::get<1>(output)[0], -1) << implementation;
    EXPECT_EQ(std::get<1>(output)[1], 400) << implementation;
    EXPECT_EQ(std::get<1>(output)[2], -1) << implementation;
    EXPECT_TRUE(std::equal(std::get<0>(output).begin() + 400, std::get<0>(output).begin() + 800, std::get<0>(expected).begin() + 400)) << implementation;
  }
}

// An infinite weight: infinity for all keys but one, which has nothing to multiply.
TEST(LongIndexSelect, ANanOfOneKey) {
  for (const std::int64_t at : {0, 4099, 5002}) {
    IndexProblem p = LevelProblem(5003, 512, [&](std::int64_t j) -> Level { return {j == at ? 0 : static_cast<int>(j % 3) + 1, 0, 0}; });
    p.weight_TH[0] = 0x7f80;
    for (const Implementation& implementation : Implementations(Profile::kSm90)) EXPECT_EQ(std::get<1>(RunOn(implementation, p))[0], -1) << implementation << ", key " << at;
  }
}

// Calls that follow each other on a stream find nothing of those before.
TEST(LongIndexSelect, CallsInTurn) {
  std::vector<IndexProblem> problems;
  problems.push_back(LevelProblem(5003, 512, [](std::int64_t) -> Level { return {4, 2, 2}; }));
  problems.emplace_back(IndexCase{.visible = {4096, 4096}, .heads = 4, .dim = 32, .top_k = 512, .page_shift = 6});
  problems.push_back(LevelProblem(5003, 512, [](std::int64_t j) -> Level { return {IsOneOf(j, 700, 5003) ? 6 : 4, static_cast<int>(j % 3), 0}; }));
  problems.emplace_back(IndexCase{.visible = {300, 7000, 4500}, .heads = 4, .dim = 32, .top_k = 512, .page_shift = 6, .recipe = Recipe::kLattice});
  std::vector<IndexProblem::Output> expected;
  for (const IndexProblem& p : problems) expected.push_back(PageOf(p, Profile::kSm90));
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    CallMemory memory(implementation);
    std::vector<IndexProblem::Output> outputs;
    for (int call = 0; call < 12; ++call) outputs.push_back(problems[static_cast<std::size_t>(call % 4)].Start());
    for (std::size_t call = 0; call < 12; ++call) Call(implementation, problems[call % 4], memory, outputs[call]);
    memory.Finish();
    for (std::size_t call = 0; call < 12; ++call) EXPECT_TRUE(SameOutputs(outputs[call], expected[call % 4])) << implementation << ", call " << call;
  }
}

}  // namespace
}  // namespace lockstep::kernels
