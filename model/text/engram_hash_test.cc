// Oracles: the published multipliers and primes of DeepSeek-V4.1, rows computed from them by an independent
// program, and NumPy 2.4.6.
#include "model/text/engram_hash.h"

#include <gtest/gtest.h>

#include "model/error.h"
#include "model/text/numpy_random.h"

namespace lockstep {
namespace {

using Rows = std::vector<std::int64_t>;

EngramConfig FlashConfig() {
  EngramConfig config;
  config.layer_ids = {1, 14};
  config.num_embeddings = {384006168, 384016682};
  config.max_ngram_size = 4;
  config.n_heads = 8;
  config.head_dim = 256;
  config.vocab_size = 16000000;
  config.pad_id = 2;
  config.compressed_vocab_size = 99092;
  return config;
}

// Rows of position `position` of the compressed ids of the independent program.
Rows FlashRows(int layer_index, int position, int dead_position = -1) {
  std::vector<std::int32_t> ids = {5, 17, 99091, 2, 1000};
  if (dead_position >= 0) ids[static_cast<std::size_t>(dead_position)] = kEngramDead;
  const std::vector<std::int32_t> recent(ids.rend() - 1 - position, ids.rend());
  std::vector<std::int32_t> shifted(4);
  EngramShift(recent, 2, shifted);
  const EngramHash hash = MakeEngramHash(FlashConfig(), layer_index);
  Rows rows(24);
  EngramRows(hash, shifted, rows);
  return rows;
}

TEST(NumpyPcg64, RawStreamEqualsNumpy) {
  NumpyPcg64 zero(0);
  for (const std::uint64_t expected :
       {11749869230777074271u, 4976686463289251617u, 755828109848996024u, 304881062738325533u}) {
    EXPECT_EQ(zero.Next(), expected);
  }
  NumpyPcg64 two_words((std::uint64_t{1} << 63) + 12345);
  for (const std::uint64_t expected :
       {9116129000838757916u, 10625643075464141531u, 787597703341980114u, 15937415839851923615u}) {
    EXPECT_EQ(two_words.Next(), expected);
  }
}

TEST(NumpyPcg64, BoundedDrawsRejectLikeNumpy) {
  NumpyPcg64 generator(5);
  const std::uint64_t bound = (std::uint64_t{1} << 62) + (std::uint64_t{1} << 61) + 1;
  for (const std::uint64_t expected :
       {5568631092344608287u, 5588953865617455548u, 3564779527194444072u, 1977039342899601836u,
        373067199206180440u, 2825625255506439529u, 313192468052243501u, 337282879276512259u}) {
    EXPECT_EQ(generator.Below(bound), expected);
  }
}

TEST(EngramHash, FlashMultipliersArePublished) {
  EXPECT_EQ(MakeEngramHash(FlashConfig(), 0).multipliers,
            (Rows{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(MakeEngramHash(FlashConfig(), 1).multipliers,
            (Rows{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
}

TEST(EngramHash, FlashPrimesArePublished) {
  const EngramHash first = MakeEngramHash(FlashConfig(), 0);
  EXPECT_EQ(
      first.primes,
      (std::vector<Rows>{{16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183},
                         {16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321},
                         {16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463}}));
  EXPECT_EQ(first.rows(), 384006168);
  EXPECT_EQ(first.offsets[0], 0);
  EXPECT_EQ(first.offsets[2], 16000057 + 16000079);
  const EngramHash second = MakeEngramHash(FlashConfig(), 1);
  EXPECT_EQ(
      second.primes,
      (std::vector<Rows>{{16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627},
                         {16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769},
                         {16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889}}));
  EXPECT_EQ(second.rows(), 384016682);
}

TEST(EngramHash, FlashRowsEqualAnIndependentProgram) {
  EXPECT_EQ(FlashRows(0, 0),
            (Rows{5412672,   18319159,  35492627,  60880252,  74962984,  95657733,  98005115,  127351390,
                  143494632, 151789366, 171410756, 185435171, 207165545, 218031260, 226330336, 247008214,
                  256353435, 276423911, 295874085, 305599364, 322749888, 348475788, 367405771, 372009279}));
  EXPECT_EQ(FlashRows(0, 4),
            (Rows{3617660,   30972310,  34928021,  50659852,  66544974,  82583410,  106617133, 127844743,
                  134533047, 157800810, 164169936, 177357326, 204180299, 215475199, 239771971, 254104027,
                  271140945, 280887198, 290214365, 304349525, 330318324, 346088358, 356741401, 372155724}));
  EXPECT_EQ(FlashRows(1, 0),
            (Rows{6939818,   27264717,  45254833,  51915000,  79245924,  86868470,  108849060, 119840903,
                  131576092, 148509516, 175704205, 177570039, 200101533, 208499118, 238497982, 243164617,
                  268363546, 274011563, 290850399, 314068096, 324530373, 351836884, 354242998, 382274687}));
  EXPECT_EQ(FlashRows(1, 4),
            (Rows{12603780,  23337326,  42687676,  60963777,  78114793,  89030691,  100948266, 115164686,
                  128386934, 145677287, 168610295, 189771556, 194844219, 212820992, 238655825, 252047386,
                  270249167, 282004335, 298276806, 311255873, 328869101, 347722385, 360344911, 376888384}));
}

TEST(EngramHash, DeadPositionBlocksOlderIds) {
  const Rows alive = FlashRows(0, 4);
  const Rows dead = FlashRows(0, 4, 2);
  EXPECT_TRUE(std::equal(alive.begin(), alive.begin() + 8, dead.begin()));
  EXPECT_EQ(dead[8], 143733824);
  EXPECT_EQ(FlashRows(1, 4, 2)[8], 136508533);
}

TEST(EngramHash, ShiftIsStickyAndPads) {
  std::vector<std::int32_t> out(4);
  EngramShift(std::vector<std::int32_t>{7, kEngramDead, 9, 10}, 2, out);
  EXPECT_EQ(out, (std::vector<std::int32_t>{7, 2, 2, 2}));
  EngramShift(std::vector<std::int32_t>{kEngramDead, 8, 9, 10}, 2, out);
  EXPECT_EQ(out, (std::vector<std::int32_t>{2, 2, 2, 2}));
  EngramShift(std::vector<std::int32_t>{7, 8}, 2, out);
  EXPECT_EQ(out, (std::vector<std::int32_t>{7, 8, 2, 2}));
}

TEST(EngramHash, SmallConfigMultipliersEqualNumpy) {
  EngramConfig config;
  config.layer_ids = {1, 2};
  config.num_embeddings = {700, 700};
  config.max_ngram_size = 3;
  config.n_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 64;
  config.pad_id = 8;
  config.compressed_vocab_size = 100;
  const EngramHash first = MakeEngramHash(config, 0);
  EXPECT_EQ(first.multipliers, (Rows{75936276614146333, 4795930018386233, 35633158494689637}));
  EXPECT_EQ(first.primes, (std::vector<Rows>{{67, 71}, {73, 79}}));
  const EngramHash second = MakeEngramHash(config, 1);
  EXPECT_EQ(second.multipliers, (Rows{75812781905327873, 36760957192771151, 22441747289823989}));
  EXPECT_EQ(second.primes, (std::vector<Rows>{{83, 89}, {97, 101}}));
  EXPECT_EQ(second.offsets, (Rows{0, 83, 172, 269}));
}

TEST(EngramHash, TooSmallTableIsRefusedByName) {
  EngramConfig config = FlashConfig();
  config.num_embeddings[1] = 384016681;
  EXPECT_NO_THROW(MakeEngramHash(config, 0));
  try {
    MakeEngramHash(config, 1);
    FAIL() << "accepted a table one row short";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("engram_num_embeddings[1]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
