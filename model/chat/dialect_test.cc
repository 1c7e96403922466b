// Oracle: spec page encoding.md sections 1, 4 and 11. The cases under encoding/tests are written here in the
// format of the checkpoint's own, their outputs by the grammar of section 3.
#include "model/chat/dialect.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "model/chat/encoder.h"
#include "model/chat/self_test.h"
#include "model/chat/test_tokenizer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A model directory that is gone after the test.
class ModelDir {
 public:
  ModelDir() {
    std::string pattern = (fs::temp_directory_path() / "lockstep-chat-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~ModelDir() { fs::remove_all(path_); }
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((fs::path(path_) / name).parent_path());
    std::ofstream(fs::path(path_) / name, std::ios::binary) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string ErrorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ChatDialectTest, NamesAreUniqueAndReadBack) {
  for (const ChatDialect dialect : kAllChatDialects)
    EXPECT_EQ(ParseChatDialect(ChatDialectName(dialect), "x"), dialect);
  EXPECT_EQ(ErrorOf([] { ParseChatDialect("v5", "--dialect"); }),
            "--dialect: expected v4-preview, v4-0731, v4.1-pre or v4.1, got \"v5\"");
}

TEST(ChatDialectTest, SettingOfTheDirectoryComesFirst) {
  const ModelDir dir;
  dir.Write("encoding/encoding.py", "REASONING_EFFORT_MAPPINGS: Dict[str, int] = {\n \"low\": 25,\n}\n");
  EXPECT_EQ(LoadChatDialect(dir.path(), SmallChatTokenizer()).dialect, ChatDialect::kV41Pre);
  dir.Write("lockstep.json", R"({"chat_dialect": "v4-0731"})");
  const ChatDialectSetting setting = LoadChatDialect(dir.path(), SmallChatTokenizer());
  EXPECT_EQ(setting.dialect, ChatDialect::kV40731);
  EXPECT_EQ(setting.source, dir.path() + "/lockstep.json");
  EXPECT_FALSE(setting.assumed);
}

TEST(ChatDialectTest, BadSettingNamesFileAndField) {
  const ModelDir dir;
  dir.Write("lockstep.json", R"({"chat_dialect": "v5"})");
  EXPECT_EQ(
      ErrorOf([&] { LoadChatDialect(dir.path(), SmallChatTokenizer()); }),
      dir.path() + "/lockstep.json: chat_dialect: expected v4-preview, v4-0731, v4.1-pre or v4.1, got \"v5\"");
  dir.Write("lockstep.json", R"({"chat_dialect": 4})");
  EXPECT_EQ(ErrorOf([&] { LoadChatDialect(dir.path(), SmallChatTokenizer()); }),
            dir.path() + "/lockstep.json: chat_dialect: expected a string, got a number");
  dir.Write("lockstep.json", "{");
  EXPECT_TRUE(ErrorOf([&] {
                LoadChatDialect(dir.path(), SmallChatTokenizer());
              }).starts_with(dir.path() + "/lockstep.json: "));
}

TEST(ChatDialectTest, BundledScriptTellsTheDialect) {
  const auto from = [](const std::string& name, const std::string& script) {
    const ModelDir dir;
    dir.Write("encoding/" + name, script);
    return LoadChatDialect(dir.path(), SmallChatTokenizer()).dialect;
  };
  EXPECT_EQ(from("encoding.py", "REASONING_EFFORT_MAPPINGS = {\n    \"low\": 50,\n    \"high\": 75,\n}"),
            ChatDialect::kV41);
  EXPECT_EQ(from("encoding_dsv4.py", "REASONING_EFFORT_MAX = (\n"), ChatDialect::kV4Preview);
  EXPECT_EQ(from("encoding_dsv4.py", "REASONING_EFFORT_PROMPTS = {\n"), ChatDialect::kV40731);
}

TEST(ChatDialectTest, TokenizerDecidesAtLast) {
  const ModelDir dir;
  EXPECT_EQ(LoadChatDialect(dir.path(), SmallChatTokenizer()).dialect, ChatDialect::kV41);
  const Tokenizer v4 =
      Tokenizer::FromJson(SmallChatTokenizerJson({{"<｜System｜>", "<｜place▁holder▁no▁799｜>"}}), "v4");
  const ChatDialectSetting setting = LoadChatDialect(dir.path(), v4);
  EXPECT_EQ(setting.dialect, ChatDialect::kV40731);
  EXPECT_TRUE(setting.assumed);
}

TEST(ChatSelfTest, MissingTokenIsNamed) {
  const Tokenizer broken = Tokenizer::FromJson(SmallChatTokenizerJson({{"｜DSML｜", "|DSML|"}}), "broken");
  EXPECT_EQ(ErrorOf([&] { RunChatSelfTest(broken, ChatDialect::kV41, "."); }),
            "tokenizer.json: added_tokens: expected ｜DSML｜ for the chat dialect v4.1");
}

TEST(ChatSelfTest, SmallTokenizerPassesWithoutOfficialIds) {
  const ModelDir dir;
  for (const ChatDialect dialect : kAllChatDialects) {
    const ChatSelfTestReport report = RunChatSelfTest(SmallChatTokenizer(), dialect, dir.path());
    EXPECT_FALSE(report.official_ids);
    EXPECT_EQ(report.round_trips, 9);
  }
}

const char kCase[] =
    R"([{"role":"system","content":"S"},{"role":"latest_reminder","content":"L"},{"role":"developer","content":"D","tools":)"
    R"([{"type":"function","function":{"name":"f","description":"","parameters":{}}}]},{"role":"assistant","content":"",)"
    R"("reasoning_content":"R","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"k\": \"v\"}"}}]},)"
    R"({"role":"tool","content":"[0]"},{"role":"assistant","content":"A","reasoning_content":"T","tool_calls":[]}])";

TEST(ChatSelfTest, CasesOfTheCheckpointAreReplayed) {
  const ModelDir dir;
  dir.Write("encoding/tests/test_input_1.json", R"({"messages":[{"role":"user","content":"hi"}]})");
  dir.Write("encoding/tests/test_output_1.txt", "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>");
  dir.Write("encoding/tests/test_input_2.json",
            R"([{"role":"user","content":"hi"},{"role":"assistant","content":"A","reasoning_content":"R"}])");
  dir.Write("encoding/tests/test_output_2.txt",
            "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>R</think>A<｜end▁of▁sentence｜>");
  dir.Write("encoding/tests/test_input_3.json",
            R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])");
  dir.Write("encoding/tests/test_output_3.txt", "image");
  const ChatSelfTestReport report = RunChatSelfTest(SmallChatTokenizer(), ChatDialect::kV40731, dir.path());
  EXPECT_EQ(report.replayed, 2);
  EXPECT_EQ(report.left_out, 1);
}

TEST(ChatSelfTest, DeveloperTurnWithToolsIsReplayed) {
  const ModelDir dir;
  dir.Write("encoding/tests/test_input_1.json", kCase);
  const std::string prompt =
      RenderChat(
          ParseChatRequest(
              R"({"messages":[{"role":"user","content":"q"}],"tools":[{"function":{"name":"f"}}],"thinking":false})"),
          ChatDialect::kV40731)
          .text();
  const std::size_t begin = prompt.find("\n\n## Tools");
  const std::string section = prompt.substr(begin, prompt.find("<｜User｜>") - begin);
  dir.Write("encoding/tests/test_output_1.txt",
            "<｜begin▁of▁sentence｜>S<｜latest_reminder｜>L<｜User｜>D" + section +
                "<｜Assistant｜><think>R</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                "<｜DSML｜parameter name=\"k\" "
                "string=\"true\">v</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
                "<｜end▁of▁sentence｜><｜User｜><tool_result>[0]</tool_result><｜Assistant｜><think>T</"
                "think>A<｜end▁of▁sentence｜>");
  EXPECT_EQ(RunChatSelfTest(SmallChatTokenizer(), ChatDialect::kV40731, dir.path()).replayed, 1);
}

TEST(ChatSelfTest, OtherBytesAreRefusedByFile) {
  const ModelDir dir;
  dir.Write("encoding/tests/test_input_1.json", R"([{"role":"user","content":"hi"}])");
  dir.Write("encoding/tests/test_output_1.txt", "<｜begin▁of▁sentence｜><｜User｜>hi\n<｜Assistant｜></think>");
  EXPECT_EQ(ErrorOf([&] { RunChatSelfTest(SmallChatTokenizer(), ChatDialect::kV41, dir.path()); }),
            dir.path() +
                "/encoding/tests/test_output_1.txt: the dialect v4.1 renders other bytes, expected the dialect "
                "of the "
                "checkpoint");
}

}  // namespace
}  // namespace lockstep
