// The published vocabularies of DeepSeek-V4 and V4.1. Oracles: ids from an independent implementation, some of
// them also in the model's own examples; the published digest of Engram's token map. All skip when
// ci/fetch_test_data.sh has not been run.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "model/text/engram_map.h"
#include "model/text/test_data.h"
#include "model/text/tokenizer.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int32_t>;

// The tokenizer, or nullptr after saying that the test is skipped.
std::unique_ptr<Tokenizer> Real(const std::string& name) {
  const auto path = RealTokenizerPath(name);
  if (!path) {
    std::printf("SKIPPED: no real tokenizer, run ci/fetch_test_data.sh\n");
    return nullptr;
  }
  return std::make_unique<Tokenizer>(Tokenizer::FromFile(*path, {.use_cache = false}));
}

struct Golden {
  const char* text;
  Ids ids;
};

TEST(RealTokenizer, PlainTextEqualsThePublishedIds) {
  const auto tokenizer = Real("v41");
  if (!tokenizer) return;
  const std::vector<Golden> goldens = {
      {"Hello world!", {19923, 2058, 3}},
      {"  leading spaces", {223, 6646, 13564}},
      {"a\n\n\nb", {67, 6328, 68}},
      {"    int main() {\n\treturn 0;\n}\n", {361, 688, 1840, 1393, 875, 5562, 223, 18, 510, 1778}},
      {"1234567 3.14159", {6895, 18009, 25, 223, 21, 16, 9926, 3318}},
      {"你好，世界！今日は", {30594, 303, 3427, 1175, 14553, 2841}},
      {"naïve café Ünïcode", {2720, 91223, 57664, 25132, 80, 16709, 8308}},
      {"don't won't I'm", {20385, 1664, 5646, 1664, 342, 4571}},
      {"x=1;y=[2,3]\r\nz", {90, 31, 19, 29, 91, 23551, 20, 14, 21, 63, 204, 201, 92}},
      {"{\"ticker\": \"NVDA\"}", {24313, 86, 27654, 3362, 582, 76399, 8088, 62773}},
      {"<tool_result>ok</tool_result>", {30, 72461, 46148, 32, 633, 1718, 72461, 46148, 32}},
      {"emoji 😀👩‍👩‍👧 x",
       {18872, 7063, 53769, 225, 25730, 105, 46088, 25730, 105, 46088, 25730, 103, 1527}},
      {"①②③④", {104894, 21686, 28650}},
      {"٣٤٥٦", {127056, 152, 100, 152, 101, 152, 102}},
      {"龥龦", {2715, 101, 2715, 102}},
      {"㐀", {162, 241, 225}},
      {"a\u00a0b", {67, 2162, 68}},
      {"a\u3000b", {67, 18524, 68}},
      {"  \n  x", {2143, 223, 1527}},
      {"foo\r\n\r\nbar", {40897, 204, 201, 204, 201, 6515}},
      {"e\u0301", {71, 17793}},
      {"$100", {6, 1457}},
      {"<｜User｜>", {30, 28217, 6756, 28217, 32}},
      {"<think>", {30, 37947, 32}},
      {"｜DSML｜", {28217, 10525, 7398, 28217}},
  };
  for (const Golden& golden : goldens) {
    EXPECT_EQ(tokenizer->EncodeOrdinary(golden.text), golden.ids) << golden.text;
    EXPECT_EQ(tokenizer->Decode(golden.ids, false), golden.text);
  }
}

TEST(RealTokenizer, TemplateTextEqualsThePublishedIds) {
  const auto tokenizer = Real("v41");
  if (!tokenizer) return;
  const std::vector<Golden> goldens = {
      {"<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>", {0, 128803, 6366, 128804, 128822}},
      {"<｜begin▁of▁sentence｜><｜System｜>You are a helpful assistant.<｜User｜>Hello<｜Assistant｜></think>",
       {0, 128799, 3476, 477, 260, 11502, 22896, 16, 128803, 19923, 128804, 128822}},
      {"<｜User｜><tool_result>{\"price\": 181.2}</tool_result><｜Assistant｜><think>",
       {128803, 30, 72461, 46148, 32, 24313, 18785, 3362, 223, 8939, 16, 20, 24568, 72461, 46148, 32, 128804,
        128821}},
      {"\n\n<｜DSML｜ calls>\n", {271, 30, 128825, 10699, 1018}},
      {"<｜deepseek_image｜>", {129264}},
  };
  for (const Golden& golden : goldens) {
    EXPECT_EQ(tokenizer->Encode(golden.text, true), golden.ids) << golden.text;
    EXPECT_EQ(tokenizer->Decode(golden.ids, false), golden.text);
  }
}

TEST(RealTokenizer, ControlTokensHaveTheirIds) {
  const auto v4 = Real("v4");
  const auto v41 = Real("v41");
  if (!v4 || !v41) return;
  for (const auto& tokenizer : {v4.get(), v41.get()}) {
    EXPECT_EQ(tokenizer->vocab_size(), 129280);
    EXPECT_EQ(tokenizer->SpecialId("<｜end▁of▁sentence｜>"), 1);
    EXPECT_EQ(tokenizer->SpecialId("<｜fim▁hole｜>"), 128800);
    EXPECT_EQ(tokenizer->SpecialId("<｜Assistant｜>"), 128804);
    EXPECT_EQ(tokenizer->SpecialId("<think>"), 128821);
    EXPECT_EQ(tokenizer->SpecialId("｜DSML｜"), 128825);
    EXPECT_EQ(tokenizer->SpecialId("<｜read_url｜>"), 128845);
  }
  EXPECT_EQ(v4->SpecialId("<｜System｜>"), std::nullopt);
  EXPECT_EQ(v41->SpecialId("<｜System｜>"), 128799);
}

std::string Sha256OfFile(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(("sha256sum '" + path.string() + "'").c_str(), "r"), ::pclose);
  char digest[65] = {};
  if (!pipe || std::fread(digest, 1, 64, pipe.get()) != 64) return "sha256sum failed";
  return digest;
}

TEST(RealTokenizer, EngramMapHasThePublishedDigest) {
  if (!Real("v41")) return;
  const TemporaryDirectory dir;
  std::filesystem::copy_file(*RealTokenizerPath("v41"), dir.path() / "tokenizer.json");
  ModelConfig config;
  config.vocab_size = 129280;
  config.engram.compressed_vocab_size = 99092;
  config.engram.pad_id = 2;
  const Ids map = LoadEngramTokenMap(dir.path().string(), config);
  for (const std::int32_t id : {0, 2, 3}) EXPECT_EQ(map[static_cast<std::size_t>(id)], id);
  EXPECT_EQ(Sha256OfFile(dir.path() / "engram_token_map.i32"),
            "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481");
}

}  // namespace
}  // namespace lockstep
