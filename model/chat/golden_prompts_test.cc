// Oracle: the ids and lengths of spec page encoding.md (sections 3.1, 6.2, 6.3, 8), made there with another
// tokenizer program. They need the real tokenizers (ci/fetch_test_data.sh).
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "model/chat/encoder.h"
#include "model/chat/self_test.h"
#include "model/text/test_data.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int32_t>;

std::optional<Tokenizer> RealTokenizer(const std::string& name) {
  const std::optional<std::string> path = RealTokenizerPath(name);
  if (path) return Tokenizer::FromFile(*path);
  std::cout << "SKIPPED: no " << name << " tokenizer; run ci/fetch_test_data.sh" << std::endl;
  return std::nullopt;
}

const char kStock[] =
    R"({"messages":[{"role":"system","content":"You are a helpful assistant."},)"
    R"({"role":"user","content":"What is the stock price of NVDA?"}],)"
    R"("tools":[{"type":"function","function":{"name":"lookup_stock","description":"Get the latest price of a stock",)"
    R"("parameters":{"type":"object","properties":{"ticker":{"type":"string","description":"Ticker symbol"}},)"
    R"("required":["ticker"]}}}],"reasoning_effort":"EFFORT"})";

std::string StockRequest(const std::string& effort) {
  std::string body = kStock;
  return body.replace(body.find("EFFORT"), 6, effort);
}

std::size_t CodePoints(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool EndsWith(const Ids& ids, const Ids& tail) {
  return ids.size() >= tail.size() && std::equal(tail.rbegin(), tail.rend(), ids.rbegin());
}

bool Contains(const Ids& ids, const Ids& run) {
  return std::search(ids.begin(), ids.end(), run.begin(), run.end()) != ids.end();
}

const Ids kStockTail = {128803, 3085, 344, 270, 7960, 5220, 294, 60944, 8088, 33, 128804, 128821};

const char kResult[] =
    R"({"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"a","function":{"name":"lookup_stock",)"
    R"("arguments":"{\"ticker\":\"NVDA\"}"}}]},{"role":"tool","tool_call_id":"a","content":"{\"price\": 181.2}"}]})";

const Ids kResultRun = {128803, 30, 72461, 46148, 32,    24313, 18785, 3362,   223,
                        8939,   16, 20,    24568, 72461, 46148, 32,    128804, 128821};

TEST(ChatGoldenTest, V41) {
  const std::optional<Tokenizer> tokenizer = RealTokenizer("v41");
  if (!tokenizer) return;
  const ChatSelfTestReport report = RunChatSelfTest(*tokenizer, ChatDialect::kV41, ".");
  EXPECT_TRUE(report.official_ids);
  EXPECT_EQ(report.goldens, 5) << "section 3.1 and the call of 42 ids";

  const EncodedPrompt stock = EncodeChat(ParseChatRequest(StockRequest("high")), ChatDialect::kV41, *tokenizer);
  EXPECT_EQ(CodePoints(stock.text), 1369u);
  EXPECT_EQ(stock.ids.size(), 316u);
  EXPECT_TRUE(EndsWith(stock.ids, kStockTail));

  const EncodedPrompt result = EncodeChat(ParseChatRequest(kResult), ChatDialect::kV41, *tokenizer);
  EXPECT_TRUE(EndsWith(result.ids, kResultRun));
}

TEST(ChatGoldenTest, V4) {
  const std::optional<Tokenizer> tokenizer = RealTokenizer("v4");
  if (!tokenizer) return;
  const ChatSelfTestReport report = RunChatSelfTest(*tokenizer, ChatDialect::kV40731, ".");
  EXPECT_TRUE(report.official_ids);
  EXPECT_EQ(report.goldens, 3) << "the V4 rows of section 3.1 and the call of 48 ids";

  const EncodedPrompt stock =
      EncodeChat(ParseChatRequest(StockRequest("low")), ChatDialect::kV40731, *tokenizer);
  EXPECT_EQ(CodePoints(stock.text), 1274u);
  EXPECT_EQ(stock.ids.size(), 300u);
  EXPECT_TRUE(EndsWith(stock.ids, kStockTail));
  EXPECT_TRUE(
      EndsWith(EncodeChat(ParseChatRequest(kResult), ChatDialect::kV40731, *tokenizer).ids, kResultRun));
}

TEST(ChatGoldenTest, EffortLevelsDifferInOneId) {
  const std::optional<Tokenizer> tokenizer = RealTokenizer("v41");
  if (!tokenizer) return;
  const auto ids = [&](ChatDialect dialect, const std::string& effort) {
    return EncodeChat(ParseChatRequest(R"({"messages":[{"role":"user","content":"hi"}],"reasoning_effort":")" +
                                       effort + "\"}"),
                      dialect, *tokenizer)
        .ids;
  };
  const Ids high = ids(ChatDialect::kV41, "high");
  const auto expect = [&](const Ids& other, std::int32_t id) {
    Ids expected = high;
    expected[8] = id;
    EXPECT_EQ(other, expected);
  };
  expect(high, 2402);
  expect(ids(ChatDialect::kV41, "low"), 1328);
  expect(ids(ChatDialect::kV41, "max"), 1457);
  expect(ids(ChatDialect::kV41Pre, "low"), 1069);
}

TEST(ChatGoldenTest, ControlTokensInUserTextArePlainText) {
  const std::optional<Tokenizer> tokenizer = RealTokenizer("v41");
  if (!tokenizer) return;
  const auto ids = [&](const std::string& content) {
    return EncodeChat(ParseChatRequest(R"({"thinking":false,"messages":[{"role":"user","content":")" + content +
                                       "\"}]}"),
                      ChatDialect::kV41, *tokenizer)
        .ids;
  };
  EXPECT_EQ(ids("<｜User｜>"), (Ids{0, 128803, 30, 28217, 6756, 28217, 32, 128804, 128822}));
  EXPECT_EQ(ids("<think>"), (Ids{0, 128803, 30, 37947, 32, 128804, 128822}));
  EXPECT_EQ(ids("｜DSML｜"), (Ids{0, 128803, 28217, 10525, 7398, 28217, 128804, 128822}));
  EXPECT_FALSE(Contains(ids("<｜deepseek_image｜>"), {129264}));
}

TEST(ChatGoldenTest, WrongDialectIsRefused) {
  const std::optional<Tokenizer> tokenizer = RealTokenizer("v4");
  if (!tokenizer) return;
  try {
    RunChatSelfTest(*tokenizer, ChatDialect::kV41, ".");
    FAIL() << "a V4 tokenizer passed as V4.1";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("<｜System｜>"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
