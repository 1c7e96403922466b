// Oracle: renderings by DeepSeek's own encoder, recorded by harness/text/encoder_diff.py (which also compares a
// thousand fresh ones).
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "model/chat/encoder.h"
#include "model/chat/json.h"
#include "model/text/test_data.h"

namespace lockstep {
namespace {

std::vector<Json> ReadRecords() {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_DIR) + "/model/chat/testdata/official_renderings.jsonl");
  std::vector<Json> records;
  for (std::string line; std::getline(file, line);) records.push_back(ReadJson(line));
  return records;
}

Prompt Rendered(const Json& record) {
  const ReasoningHistory history =
      record.Find("history")->text == "drop" ? ReasoningHistory::kDrop : ReasoningHistory::kAuto;
  return RenderChat(ParseChatRequest(*record.Find("request")),
                    ParseChatDialect(record.Find("dialect")->text, "record"), {.reasoning_history = history});
}

std::string ControlRanges(const Prompt& prompt) {
  std::string out = "[";
  for (const PromptSegment& segment : prompt.segments()) {
    if (!segment.control) continue;
    if (out.size() > 1) out += ", ";
    out += "[" + std::to_string(segment.begin) + ", " + std::to_string(segment.end) + "]";
  }
  return out + "]";
}

std::string Fnv1a(const std::vector<std::int32_t>& ids) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const std::int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((id >> shift) & 255)) * 0x100000001B3;
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

TEST(RecordedRenderingsTest, TextAndControlTokensEqualTheOfficialEncoder) {
  const std::vector<Json> records = ReadRecords();
  ASSERT_GE(records.size(), 100u);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Prompt prompt = Rendered(records[i]);
    EXPECT_EQ(prompt.text(), records[i].Find("text")->text) << "record " << i;
    EXPECT_EQ(ControlRanges(prompt), SpacedJson(*records[i].Find("controls"))) << "record " << i;
  }
}

TEST(RecordedRenderingsTest, IdsEqualTheOfficialEncoder) {
  const std::optional<std::string> v4 = RealTokenizerPath("v4");
  const std::optional<std::string> v41 = RealTokenizerPath("v41");
  if (!v4 || !v41) {
    std::cout << "SKIPPED: no real tokenizers; run ci/fetch_test_data.sh" << std::endl;
    return;
  }
  const Tokenizer old_tokenizer = Tokenizer::FromFile(*v4);
  const Tokenizer new_tokenizer = Tokenizer::FromFile(*v41);
  int compared = 0;
  for (const Json& record : ReadRecords()) {
    const Json* ids = record.Find("ids");
    if (ids == nullptr) continue;
    const bool is_v41 = record.Find("dialect")->text.starts_with("v4.1");
    const EncodedPrompt prompt = EncodePrompt(Rendered(record), is_v41 ? new_tokenizer : old_tokenizer);
    EXPECT_EQ(std::to_string(prompt.ids.size()), ids->items[0].text) << "record with ids " << compared;
    EXPECT_EQ(Fnv1a(prompt.ids), ids->items[1].text) << "record with ids " << compared;
    ++compared;
  }
  EXPECT_GE(compared, 40);
}

}  // namespace
}  // namespace lockstep
