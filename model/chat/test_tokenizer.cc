#include "model/chat/test_tokenizer.h"

#include "model/chat/control_tokens.h"
#include "model/chat/json.h"
#include "model/text/utf8.h"

namespace lockstep {
namespace {

// GPT-2's printable stand-in for a byte.
std::string ByteSymbol(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  std::string symbol;
  AppendUtf8(static_cast<char32_t>(code), &symbol);
  return symbol;
}

std::string Symbols(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) out += ByteSymbol(static_cast<unsigned char>(byte));
  return out;
}

struct Merge {
  std::string left;
  std::string right;
};

const std::vector<Merge>& Merges() {
  static const std::vector<Merge> merges = {
      {"<", "/"},  {">", "\n"}, {"\n", "\n"},     {"i", "n"},           {"v", "o"},       {"in", "vo"},
      {" ", "in"}, {"=", "\""}, {"\xF0", "\x9F"}, {"\xF0\x9F", "\x91"}, {"\xE4", "\xBD"}, {"}", "</"}};
  return merges;
}

std::string AddedToken(int id, std::string_view content, bool special) {
  std::string out = "{\"id\": " + std::to_string(id) + ", \"content\": ";
  AppendJsonString(content, &out);
  out += ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": ";
  return out + (special ? "true}" : "false}");
}

constexpr std::string_view kPreTokenizer =
    R"JSON({"type": "Sequence", "pretokenizers": [
  {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated", "invert": false},
  {"type": "Split", "pattern": {"Regex": "[一-龥぀-ゟ゠-ヿ]+"}, "behavior": "Isolated", "invert": false},
  {"type": "Split", "pattern": {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
  {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})JSON";

std::string Vocabulary() {
  std::string out = "{";
  int id = 0;
  const auto add = [&](const std::string& symbols) {
    if (id > 0) out += ", ";
    AppendJsonString(symbols, &out);
    out += ": " + std::to_string(id++);
  };
  for (int byte = 0; byte < 256; ++byte) add(ByteSymbol(byte));
  for (const Merge& merge : Merges()) add(Symbols(merge.left + merge.right));
  return out + "}";
}

std::string MergeList() {
  std::string out = "[";
  for (const Merge& merge : Merges()) {
    if (out.size() > 1) out += ", ";
    AppendJsonString(Symbols(merge.left) + " " + Symbols(merge.right), &out);
  }
  return out + "]";
}

}  // namespace

std::string SmallChatTokenizerJson(const std::vector<std::pair<std::string, std::string>>& renames) {
  std::string added;
  int id = 256 + static_cast<int>(Merges().size());
  const auto add = [&](std::string text, bool special) {
    for (const auto& [from, to] : renames) {
      if (text == from) text = to;
    }
    if (!added.empty()) added += ", ";
    added += AddedToken(id++, text, special);
  };
  for (const OfficialToken& token : OfficialTokens(ChatDialect::kV41)) {
    add(std::string(token.text), token.text == kBosText || token.text == kEosText);
  }
  for (const std::string_view mark : kGroundingTexts) add(std::string(mark), true);
  add("<|place_holder_mm_span_0021|>", true);
  return "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [" + added +
         "], \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []}, \"pre_tokenizer\": " +
         std::string(kPreTokenizer) +
         ", \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
         "\"trim_offsets\": true, \"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"dropout\": null, "
         "\"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
         "\"fuse_unk\": "
         "false, \"byte_fallback\": false, \"vocab\": " +
         Vocabulary() + ", \"merges\": " + MergeList() + "}}";
}

const Tokenizer& SmallChatTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::FromJson(SmallChatTokenizerJson(), "small tokenizer");
  return tokenizer;
}

}  // namespace lockstep
