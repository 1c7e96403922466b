// Oracles: the classes that the normalizers of the `tokenizers` library give
// (golden/tokenizer-small/cases.json); for the real vocabulary the published number of classes and digest
// (real_tokenizer_test.cc).
#include "model/text/engram_map.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/error.h"
#include "model/text/test_data.h"
#include "model/text/unicode.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kSmallClasses = 436;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 512;
  config.engram.compressed_vocab_size = kSmallClasses;
  config.engram.pad_id = 2;
  return config;
}

Ids SmallClasses() { return SmallTokenizerCases()["engram_classes"].get<Ids>(); }

void WriteMap(const fs::path& path, const Ids& map) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(map.data()),
             static_cast<std::streamsize>(map.size() * sizeof(map[0])));
}

std::string MessageOf(const fs::path& dir, const ModelConfig& config) {
  try {
    LoadEngramTokenMap(dir.string(), config);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(EngramMap, EqualsTheLibrarysNormalizers) {
  const EngramTokenMap map = BuildEngramTokenMap(SmallTokenizer());
  EXPECT_EQ(map.classes, kSmallClasses);
  EXPECT_EQ(map.compressed, SmallClasses());
}

// NFKC, NFD, no marks, lower case, as Unicode 16.0 defines them.
TEST(EngramMap, Folding) {
  EXPECT_EQ(FoldForEngram("ÀÉîõÜ"), "aeiou");
  EXPECT_EQ(FoldForEngram("ﬁ ½ ① ﷺ"), "fi 1⁄2 1 صلى الله عليه وسلم");
  EXPECT_EQ(FoldForEngram("İIıΣς"), "iiıσς");
  EXPECT_EQ(FoldForEngram("각"), "\u1100\u1161\u11A8");
  EXPECT_EQ(FoldForEngram("がガ"), "かカ");
  EXPECT_EQ(FoldForEngram("\u0301\u20DD"), "");
  EXPECT_EQ(FoldForEngram("㋿"), "令和");
}

TEST(EngramMap, IsStoredAndReadBackUntilTheTokenizerChanges) {
  const TemporaryDirectory dir;
  fs::copy_file(SmallTokenizerPath(), dir.path() / "tokenizer.json");
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), SmallConfig()), SmallClasses());
  const fs::path stored = dir.path() / "engram_token_map.i32";
  ASSERT_EQ(fs::file_size(stored), 512u * 4u);
  const auto written = fs::last_write_time(stored);
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), SmallConfig()), SmallClasses());
  EXPECT_EQ(fs::last_write_time(stored), written);

  std::ofstream(dir.path() / "tokenizer.json", std::ios::app) << "\n";
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), SmallConfig()), SmallClasses());
  EXPECT_NE(fs::last_write_time(stored), written);
}

TEST(EngramMap, AForeignOrDamagedMapIsNotTrusted) {
  const TemporaryDirectory dir;
  fs::copy_file(SmallTokenizerPath(), dir.path() / "tokenizer.json");
  WriteMap(dir.path() / "engram_token_map.i32", Ids(512, 7));
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), SmallConfig()), SmallClasses());
  WriteMap(dir.path() / "engram_token_map.i32", Ids(512, 7));
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), SmallConfig()), SmallClasses());
  std::ofstream(dir.path() / "engram_token_map.json") << "{";
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), SmallConfig()), SmallClasses());
}

TEST(EngramMap, WorksWithoutATokenizer) {
  const TemporaryDirectory dir;
  Ids map(512);
  for (std::size_t i = 0; i < map.size(); ++i) map[i] = static_cast<std::int32_t>(i * 5 % 436);
  WriteMap(dir.path() / "engram_token_map.i32", map);
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), SmallConfig()), map);
}

TEST(EngramMap, IdsBeyondTheTokenizerArePadding) {
  const TemporaryDirectory dir;
  fs::copy_file(SmallTokenizerPath(), dir.path() / "tokenizer.json");
  ModelConfig config = SmallConfig();
  config.vocab_size = 1024;
  Ids expected = SmallClasses();
  expected.resize(1024, 2);
  EXPECT_EQ(LoadEngramTokenMap(dir.path().string(), config), expected);
}

TEST(EngramMap, ContradictionsAreNamed) {
  const TemporaryDirectory dir;
  EXPECT_NE(MessageOf(dir.path(), SmallConfig()).find("engram_token_map.i32"), std::string::npos);

  WriteMap(dir.path() / "engram_token_map.i32", Ids(511, 0));
  EXPECT_NE(MessageOf(dir.path(), SmallConfig()).find("expected 512 int32"), std::string::npos);

  Ids map(512, 0);
  map[9] = kSmallClasses;
  WriteMap(dir.path() / "engram_token_map.i32", map);
  EXPECT_NE(MessageOf(dir.path(), SmallConfig()).find("id 9"), std::string::npos);

  fs::copy_file(SmallTokenizerPath(), dir.path() / "tokenizer.json");
  ModelConfig config = SmallConfig();
  config.engram.compressed_vocab_size = 435;
  EXPECT_NE(MessageOf(dir.path(), config).find("expected 435 classes"), std::string::npos);
  config = SmallConfig();
  config.vocab_size = 500;
  EXPECT_NE(MessageOf(dir.path(), config).find("vocab_size 500"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
