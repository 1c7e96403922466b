// Contract (docs/text.md): the cache never changes what the tokenizer does; whatever is wrong with it, it is
// made anew.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "model/error.h"
#include "model/text/content_hash.h"
#include "model/text/test_data.h"
#include "model/text/token_tables.h"
#include "model/text/tokenizer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kText = "The river was wide <｜User｜> and slow, 你好 12345";

void WriteText(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// The same tokenizer in a file of the size that gets a cache.
std::string LargeEnough(const std::string& json) { return json + std::string(1 << 20, ' '); }

class TokenizerCache : public ::testing::Test {
 protected:
  TokenizerCache() {
    WriteText(dir_.path() / "tokenizer.json", LargeEnough(ReadText(SmallTokenizerPath())));
    ExpectRight();
  }

  void ExpectRight() const {
    const Tokenizer tokenizer = Tokenizer::FromDirectory(dir_.path().string());
    EXPECT_EQ(tokenizer.Encode(kText, true), SmallTokenizer().Encode(kText, true));
    EXPECT_EQ(tokenizer.vocab_size(), SmallTokenizer().vocab_size());
  }

  fs::path cache() const { return dir_.path() / "tokenizer.lockstep"; }

  TemporaryDirectory dir_;
};

TEST_F(TokenizerCache, IsWrittenBesideTheTokenizerAndReadBack) {
  ASSERT_TRUE(fs::exists(cache()));
  const auto written = fs::last_write_time(cache());
  ExpectRight();
  EXPECT_EQ(fs::last_write_time(cache()), written);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path()), fs::directory_iterator()), 2)
      << "a temporary file was left";
}

TEST_F(TokenizerCache, OfAnotherTokenizerIsReplaced) {
  const std::string before = ReadText(cache());
  auto document = nlohmann::json::parse(ReadText(SmallTokenizerPath()));
  document["model"]["merges"].erase(0);
  WriteText(dir_.path() / "tokenizer.json", LargeEnough(document.dump()));
  const Tokenizer changed = Tokenizer::FromDirectory(dir_.path().string());
  EXPECT_EQ(changed.Encode(kText, true), Tokenizer::FromJson(document.dump(), "changed").Encode(kText, true));
  EXPECT_NE(ReadText(cache()), before);
}

TEST_F(TokenizerCache, EveryDamageIsNoticed) {
  const std::string good = ReadText(cache());
  for (std::size_t at = 0; at < good.size(); at += 1 + good.size() / 97) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    WriteText(cache(), bad);
    ExpectRight();
    EXPECT_EQ(ReadText(cache()), good) << "byte " << at;
  }
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, std::size_t{95}, good.size() / 2, good.size() - 1}) {
    WriteText(cache(), good.substr(0, size));
    ExpectRight();
    EXPECT_EQ(ReadText(cache()), good) << "cut to " << size;
  }
}

// A cache with a right checksum and wrong contents: no index may lead out of the tables.
TEST_F(TokenizerCache, IndicesAreCheckedDespiteARightChecksum) {
  const std::string good = ReadText(cache());
  constexpr std::size_t kHashOffset = 8, kHashedFrom = 16;
  int refused = 0;
  for (std::size_t at = kHashedFrom; at + 4 <= good.size(); at += 4) {
    std::vector<std::byte> image(good.size());
    std::memcpy(image.data(), good.data(), good.size());
    const std::uint32_t huge = 0x7FFFFFFF;
    std::memcpy(image.data() + at, &huge, sizeof(huge));
    const std::uint64_t hash = ContentHash(std::span(image).subspan(kHashedFrom));
    std::memcpy(image.data() + kHashOffset, &hash, sizeof(hash));
    TokenTables tables;
    if (!TokenTables::Open(image, &tables)) {
      ++refused;
      continue;
    }
    for (std::int32_t id = -1; id <= tables.vocab_size(); ++id) tables.Bytes(id);
    for (const char* piece : {"The", " river", "\xE4\xBD\xA0"}) tables.WholePiece(piece);
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(TokenizerCache, ASmallFileGetsNone) {
  fs::remove(cache());
  fs::copy_file(SmallTokenizerPath(), dir_.path() / "tokenizer.json", fs::copy_options::overwrite_existing);
  ExpectRight();
  EXPECT_FALSE(fs::exists(cache()));
}

TEST_F(TokenizerCache, AnUnwritableDirectoryIsNoError) {
  const TokenizerOptions options{.use_cache = true, .cache_dir = "/proc/nowhere"};
  const Tokenizer tokenizer = Tokenizer::FromFile(SmallTokenizerPath(), options);
  EXPECT_EQ(tokenizer.Encode(kText, true), SmallTokenizer().Encode(kText, true));
}

TEST_F(TokenizerCache, GoesToTheDirectoryOfTheOptions) {
  const fs::path elsewhere = dir_.path() / "a" / "b";
  const TokenizerOptions options{.use_cache = true, .cache_dir = elsewhere.string()};
  Tokenizer::FromFile(SmallTokenizerPath(), options);
  EXPECT_EQ(std::distance(fs::directory_iterator(elsewhere), fs::directory_iterator()), 1);
  fs::remove_all(elsewhere);
  Tokenizer::FromFile(SmallTokenizerPath(), {.use_cache = false, .cache_dir = elsewhere.string()});
  EXPECT_FALSE(fs::exists(elsewhere));
}

}  // namespace
}  // namespace lockstep
