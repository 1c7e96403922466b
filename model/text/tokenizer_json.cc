#include "model/text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "model/error.h"
#include "model/json_text.h"
#include "model/text/pre_tokenizer.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDepth = 16;

// Thrown inside the parse; the caller adds the file.
class FieldError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Builds a document of everything but model.vocab and model.merges, which are a hundred times larger and go
// straight to the spec.
class SpecReader : public Json::json_sax_t {
 public:
  explicit SpecReader(TokenizerSpec* spec) : spec_(spec) {}

  const Json& document() const { return document_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(std::int64_t value) override { return Number(value); }
  bool number_unsigned(std::uint64_t value) override {
    return Number(value <= INT64_MAX ? static_cast<std::int64_t>(value) : INT64_MAX);
  }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool binary(Json::binary_t&) override { return false; }

  bool string(std::string& value) override {
    if (section_ == Section::kMerges) {
      AddMergeText(value);
      return true;
    }
    return Add(std::move(value));
  }

  bool key(std::string& name) override {
    key_ = std::move(name);
    return true;
  }

  bool start_object(std::size_t) override {
    if (open_.size() == 2 && InModel() && key_ == "vocab") return Enter(Section::kVocabulary);
    return Open(Json::object());
  }
  bool end_object() override {
    if (section_ == Section::kVocabulary) return Leave();
    return Close();
  }
  bool start_array(std::size_t) override {
    if (section_ == Section::kMerges && !in_pair_) return in_pair_ = true;
    if (open_.size() == 2 && InModel() && key_ == "merges") return Enter(Section::kMerges);
    return Open(Json::array());
  }
  bool end_array() override {
    if (in_pair_) return FinishPair();
    if (section_ == Section::kMerges) return Leave();
    return Close();
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    throw FieldError("byte " + std::to_string(position) + ": expected well-formed JSON in UTF-8");
  }

 private:
  enum class Section { kDocument, kVocabulary, kMerges };

  bool InModel() const { return model_ != nullptr && open_.back() == model_; }

  bool Enter(Section section) {
    if (section_ != Section::kDocument) Fail();
    Add(true);
    section_ = section;
    return true;
  }
  bool Leave() {
    section_ = Section::kDocument;
    return true;
  }

  bool Number(std::int64_t value) {
    if (section_ != Section::kVocabulary) return Add(value);
    if (value < 0 || value >= kMaxVocabSize) {
      throw FieldError("model.vocab[\"" + Printable(key_) + "\"]: expected an id from 0 to " +
                       std::to_string(kMaxVocabSize - 1));
    }
    spec_->vocabulary.push_back({std::move(key_), static_cast<std::int32_t>(value)});
    return true;
  }

  void AddMergeText(std::string& text) {
    if (in_pair_) {
      pair_.push_back(std::move(text));
      return;
    }
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) Fail();
    AddMerge({text.substr(0, space), text.substr(space + 1)});
  }
  bool FinishPair() {
    if (pair_.size() != 2) Fail();
    AddMerge({std::move(pair_[0]), std::move(pair_[1])});
    pair_.clear();
    in_pair_ = false;
    return true;
  }
  void AddMerge(Merge merge) {
    if (spec_->merges.size() == kMaxMerges) Fail();
    spec_->merges.push_back(std::move(merge));
  }

  // A value of a kind that the section does not hold.
  [[noreturn]] void Fail() const {
    if (section_ == Section::kVocabulary)
      throw FieldError("model.vocab[\"" + Printable(key_) + "\"]: expected an integer id");
    throw FieldError("model.merges[" + std::to_string(spec_->merges.size()) +
                     "]: expected \"left right\" or [\"left\", \"right\"], at most " +
                     std::to_string(kMaxMerges) + " of them");
  }

  bool Open(Json value) {
    if (open_.size() == kMaxDepth)
      throw FieldError("expected no more than " + std::to_string(kMaxDepth) + " nested values");
    Json* const added = Put(std::move(value));
    if (open_.size() == 1 && key_ == "model") model_ = added;
    open_.push_back(added);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Add(Json value) {
    Put(std::move(value));
    return true;
  }
  Json* Put(Json value) {
    if (section_ != Section::kDocument) Fail();
    if (open_.empty()) return &(document_ = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    if (parent.contains(key_)) throw FieldError(Printable(key_) + ": expected only once in its object");
    return &(parent[key_] = std::move(value));
  }

  TokenizerSpec* spec_;
  Json document_;
  std::vector<Json*> open_;
  Json* model_ = nullptr;
  std::string key_;
  Section section_ = Section::kDocument;
  bool in_pair_ = false;
  std::vector<std::string> pair_;
};

// What a field must be when it is there, and where it is.
void Require(bool condition, const std::string& field, const std::string& expected) {
  if (!condition) throw FieldError(field + ": expected " + expected);
}

const Json& Member(const Json& object, const std::string& path, const char* name) {
  Require(object.is_object(), path.empty() ? "the file" : path, "an object");
  const auto found = object.find(name);
  Require(found != object.end(), path.empty() ? name : path + "." + name, "to be present");
  return *found;
}

// Absent, null, false, 0 or "": the feature is off.
bool IsOff(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() || *found == Json(false) || *found == Json(0) ||
         *found == Json("");
}

void CheckModel(const Json& model) {
  Require(Member(model, "model", "type") == "BPE", "model.type", "\"BPE\"");
  for (const char* feature : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                              "byte_fallback", "ignore_merges"}) {
    Require(IsOff(model, feature), std::string("model.") + feature, "null or false");
  }
  Require(Member(model, "model", "vocab") == Json(true), "model.vocab", "an object of token texts and ids");
  Require(Member(model, "model", "merges") == Json(true), "model.merges", "an array of merges");
}

void CheckNormalizer(const Json& document) {
  const Json& normalizer = Member(document, "", "normalizer");
  const bool is_empty =
      normalizer.is_null() || (normalizer.is_object() && normalizer.value("type", Json()) == "Sequence" &&
                               normalizer.value("normalizers", Json()) == Json::array());
  Require(is_empty, "normalizer", "null or an empty Sequence");
}

void CheckPreTokenizer(const Json& document) {
  const Json& sequence = Member(document, "", "pre_tokenizer");
  Require(Member(sequence, "pre_tokenizer", "type") == "Sequence", "pre_tokenizer.type", "\"Sequence\"");
  const Json& steps = Member(sequence, "pre_tokenizer", "pretokenizers");
  Require(steps.is_array() && steps.size() == std::size(kSplitPatterns) + 1, "pre_tokenizer.pretokenizers",
          "three Split steps and ByteLevel");
  for (std::size_t i = 0; i < std::size(kSplitPatterns); ++i) {
    const std::string field = "pre_tokenizer.pretokenizers[" + std::to_string(i) + "]";
    const Json& step = steps[i];
    Require(Member(step, field, "type") == "Split", field + ".type", "\"Split\"");
    Require(Member(step, field, "pattern") == Json::object({{"Regex", kSplitPatterns[i]}}), field + ".pattern",
            "the pattern of DeepSeek-V3 and V4, " + Json(kSplitPatterns[i]).dump());
    Require(Member(step, field, "behavior") == "Isolated", field + ".behavior", "\"Isolated\"");
    Require(IsOff(step, "invert"), field + ".invert", "false");
  }
  const std::string field = "pre_tokenizer.pretokenizers[3]";
  const Json& bytes = steps.back();
  Require(Member(bytes, field, "type") == "ByteLevel", field + ".type", "\"ByteLevel\"");
  Require(Member(bytes, field, "add_prefix_space") == Json(false), field + ".add_prefix_space", "false");
  Require(Member(bytes, field, "use_regex") == Json(false), field + ".use_regex", "false");
}

AddedToken ParseAddedToken(const Json& entry, const std::string& field) {
  AddedToken token;
  const Json& id = Member(entry, field, "id");
  const bool in_range =
      id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < kMaxVocabSize;
  Require(in_range, field + ".id", "an id from 0 to " + std::to_string(kMaxVocabSize - 1));
  token.id = id.get<std::int32_t>();
  const Json& content = Member(entry, field, "content");
  Require(content.is_string() && !content.get_ref<const std::string&>().empty(), field + ".content",
          "a text of one byte or more");
  token.content = content.get<std::string>();
  for (const char* feature : {"single_word", "lstrip", "rstrip"}) {
    Require(IsOff(entry, feature), field + "." + feature, "false");
  }
  const auto flag = [&](const char* name) {
    const Json& value = Member(entry, field, name);
    Require(value.is_boolean(), field + "." + name, "true or false");
    return value.get<bool>();
  };
  token.normalized = flag("normalized");
  token.special = flag("special");
  return token;
}

void ParseDocument(const Json& document, TokenizerSpec* spec) {
  CheckModel(Member(document, "", "model"));
  CheckNormalizer(document);
  CheckPreTokenizer(document);
  Require(Member(Member(document, "", "decoder"), "decoder", "type") == "ByteLevel", "decoder.type",
          "\"ByteLevel\"");
  const Json& added = Member(document, "", "added_tokens");
  Require(added.is_array(), "added_tokens", "an array");
  for (std::size_t i = 0; i < added.size(); ++i) {
    spec->added.push_back(ParseAddedToken(added[i], "added_tokens[" + std::to_string(i) + "]"));
  }
}

}  // namespace

TokenizerSpec ParseTokenizerJson(std::string_view json, const std::string& file) {
  TokenizerSpec spec;
  try {
    SpecReader reader(&spec);
    Json::sax_parse(json, &reader);
    ParseDocument(reader.document(), &spec);
  } catch (const FieldError& error) {
    throw InputError(file + ": " + error.what());
  }
  return spec;
}

const std::array<char32_t, 256>& ByteCharacters() {
  static const std::array<char32_t, 256> characters = [] {
    std::array<char32_t, 256> map{};
    char32_t next_stand_in = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool is_printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
      map[byte] = is_printable ? byte : next_stand_in++;
    }
    return map;
  }();
  return characters;
}

}  // namespace lockstep
