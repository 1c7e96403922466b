// Contract: a tokenizer.json that is malformed, or asks for what this tokenizer does not do, is refused with
// the field's name.
#include "model/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "model/error.h"
#include "model/text/test_data.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;

std::string MessageOf(const std::string& json) {
  try {
    Tokenizer::FromJson(json, "t.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

Json Small() { return Json::parse(ReadText(SmallTokenizerPath())); }

void ExpectRefused(const std::string& json, const std::string& field) {
  const std::string message = MessageOf(json);
  EXPECT_EQ(message.rfind("t.json: " + field, 0), 0u) << "got: " << message << "\nwanted field: " << field;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

struct Change {
  const char* pointer;
  Json value;
  const char* field;
};

TEST(TokenizerJson, UnknownFeaturesAreRefusedByName) {
  const std::vector<Change> changes = {
      {"/model/type", "Unigram", "model.type"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/unk_token", "<unk>", "model.unk_token"},
      {"/model/byte_fallback", true, "model.byte_fallback"},
      {"/model/ignore_merges", true, "model.ignore_merges"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
      {"/normalizer", Json{{"type", "NFC"}}, "normalizer"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer/type", "ByteLevel", "pre_tokenizer.type"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{N}", "pre_tokenizer.pretokenizers[0].pattern"},
      {"/pre_tokenizer/pretokenizers/1/behavior", "Removed", "pre_tokenizer.pretokenizers[1].behavior"},
      {"/pre_tokenizer/pretokenizers/2/invert", true, "pre_tokenizer.pretokenizers[2].invert"},
      {"/pre_tokenizer/pretokenizers/3/use_regex", true, "pre_tokenizer.pretokenizers[3].use_regex"},
      {"/pre_tokenizer/pretokenizers/3/add_prefix_space", true,
       "pre_tokenizer.pretokenizers[3].add_prefix_space"},
      {"/decoder/type", "WordPiece", "decoder.type"},
      {"/added_tokens/3/lstrip", true, "added_tokens[3].lstrip"},
      {"/added_tokens/3/rstrip", true, "added_tokens[3].rstrip"},
      {"/added_tokens/3/single_word", true, "added_tokens[3].single_word"},
  };
  for (const Change& change : changes) {
    Json document = Small();
    document[Pointer(change.pointer)] = change.value;
    ExpectRefused(document.dump(), change.field);
  }
}

TEST(TokenizerJson, MistypedAndContradictoryFieldsAreRefusedByName) {
  const std::vector<Change> changes = {
      {"/added_tokens", Json::object(), "added_tokens"},
      {"/added_tokens/0", 7, "added_tokens[0]"},
      {"/added_tokens/0/id", -1, "added_tokens[0].id"},
      {"/added_tokens/0/id", 1 << 20, "added_tokens[0].id"},
      {"/added_tokens/0/id", 1.5, "added_tokens[0].id"},
      {"/added_tokens/0/id", 5, "added_tokens[0].id"},    // model.vocab says 0
      {"/added_tokens/5/id", 498, "added_tokens[7].id"},  // which has 498 itself
      {"/added_tokens/5/id", 50, "added_tokens[5].id"},   // a byte token has it
      {"/added_tokens/0/content", "", "added_tokens[0].content"},
      {"/added_tokens/0/special", 1, "added_tokens[0].special"},
      {"/model", Json::array(), "model"},
      {"/model/vocab", Json::array(), "model.vocab"},
      {"/model/vocab/!", -3, "model.vocab[\"!\"]"},
      {"/model/vocab/!", 1 << 20, "model.vocab[\"!\"]"},
      {"/model/vocab/!", "3", "model.vocab[\"!\"]"},
      {"/model/vocab/!", 2.5, "model.vocab[\"!\"]"},
      {"/model/vocab/!", Json::object(), "model.vocab[\"!\"]"},
      {"/model/vocab/!", 4, "model.vocab"},  // twice
      {"/model/merges", "x", "model.merges"},
      {"/model/merges/2", "abc", "model.merges[2]"},
      {"/model/merges/2", "a b c", "model.merges[2]"},
      {"/model/merges/2", "zq zq", "model.merges[2]"},
      {"/model/merges/2", 5, "model.merges[2]"},
      {"/model/merges/2", Json{"a"}, "model.merges[2]"},
      {"/model/merges/2", Json{"a", "b", "c"}, "model.merges[2]"},
      {"/model/merges/2", Json{"a", 1}, "model.merges[2]"},
      {"/model/merges/2", Json{"a", Json::array()}, "model.merges[2]"},
      {"/model/merges/2", Json::object(), "model.merges[2]"},
  };
  for (const Change& change : changes) {
    Json document = Small();
    document[Pointer(change.pointer)] = change.value;
    ExpectRefused(document.dump(), change.field);
  }
}

TEST(TokenizerJson, MissingFieldsAreRefusedByName) {
  for (const char* name : {"added_tokens", "normalizer", "pre_tokenizer", "decoder", "model"}) {
    Json document = Small();
    document.erase(name);
    ExpectRefused(document.dump(), name);
  }
  for (const char* name : {"type", "vocab", "merges"}) {
    Json document = Small();
    document["model"].erase(name);
    ExpectRefused(document.dump(), std::string("model.") + name);
  }
  Json document = Small();
  document["model"]["vocab"].erase("Ā");
  document["model"]["merges"].clear();
  ExpectRefused(document.dump(), "model.vocab: expected a token for each byte, none for byte 0");
}

TEST(TokenizerJson, MalformedJsonIsRefused) {
  for (const char* json : {"", "{", "[1,2", "{\"model\":}", "{} {}", "{\"a\":\"\xFF\"}", "nul"})
    ExpectRefused(json, "byte ");
  for (const char* json : {"null", "[]", "7", "\"x\""}) ExpectRefused(json, "the file");
  ExpectRefused(std::string(1'000'000, '['), "expected no more than 16 nested values");
  ExpectRefused("{\"model\":{},\"model\":{}}", "model: expected only once");
}

TEST(TokenizerJson, MergesMayBePairs) {
  Json document = Small();
  for (Json& merge : document["model"]["merges"]) {
    const std::string text = merge;
    const std::size_t space = text.find(' ');
    merge = Json{text.substr(0, space), text.substr(space + 1)};
  }
  const Tokenizer tokenizer = Tokenizer::FromJson(document.dump(), "pairs");
  const std::string text = "The river was wide and slow";
  EXPECT_EQ(tokenizer.EncodeOrdinary(text), SmallTokenizer().EncodeOrdinary(text));
}

TEST(TokenizerJson, UnusedIdsAreAllowed) {
  Json document = Small();
  document["added_tokens"].back()["id"] = 600;
  const Tokenizer tokenizer = Tokenizer::FromJson(document.dump(), "hole");
  EXPECT_EQ(tokenizer.vocab_size(), 601);
  EXPECT_FALSE(tokenizer.HasToken(511));
  EXPECT_TRUE(tokenizer.HasToken(600));
}

TEST(TokenizerJson, AMissingFileIsNamed) { EXPECT_THROW(Tokenizer::FromDirectory("/nonexistent"), InputError); }

}  // namespace
}  // namespace lockstep
