#include "model/chat/dsml_tag.h"

#include <algorithm>

namespace lockstep {
namespace {

// A tag that has not ended by then never will.
constexpr std::size_t kMaxTagBytes = 4096;

struct Word {
  std::string_view text;
  DsmlWord word;
};

constexpr Word kWords[] = {{"calls", DsmlWord::kBlock},
                           {"tool_calls", DsmlWord::kBlock},
                           {"invoke", DsmlWord::kInvoke},
                           {"parameter", DsmlWord::kParameter}};

bool IsWordByte(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }
bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string_view WithoutTrailingSpace(std::string_view text) {
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::size_t DsmlTagReader::Push(std::string_view text) {
  std::size_t taken = 0;
  while (taken < text.size() && state_ == State::kReading) {
    if (!PushByte(text[taken])) break;
    ++taken;
  }
  return taken;
}

// False if the byte is not part of the tag any more.
bool DsmlTagReader::PushByte(char c) {
  const bool in_word = !word_known_;
  if (in_word && !IsWordByte(c) && !(c == ' ' && text_.empty())) {
    ReadWord();
    if (state_ == State::kNoTag) return false;
  }
  const bool has_attributes = word_known_ && !tag_.closing && tag_.word != DsmlWord::kBlock;
  if (word_known_ && !has_attributes && c != '>' && !IsSpace(c)) {
    state_ = State::kComplete;
    return false;
  }
  text_ += c;
  if (word_known_ && ((c == '>' && AttributesComplete()) || text_.size() > kMaxTagBytes)) End();
  if (!word_known_ && text_.size() > kMaxTagBytes) state_ = State::kNoTag;
  return true;
}

std::string DsmlTagReader::TakeBracket() {
  for (const std::string_view bracket : {"</", "<"}) {
    if (!text_.ends_with(bracket)) continue;
    text_.erase(text_.size() - bracket.size());
    return std::string(bracket);
  }
  return {};
}

bool DsmlTagReader::MayBecomeTag() const {
  if (word_known_) return true;
  std::string_view word = text_;
  if (word.starts_with(' ')) word.remove_prefix(1);
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](const Word& w) { return w.text.starts_with(word); });
}

void DsmlTagReader::ReadWord() {
  std::string_view word = text_;
  if (word.starts_with(' ')) word.remove_prefix(1);
  const auto known =
      std::find_if(std::begin(kWords), std::end(kWords), [&](const Word& w) { return w.text == word; });
  if (known == std::end(kWords)) {
    state_ = State::kNoTag;
    return;
  }
  word_known_ = true;
  tag_.word = known->word;
  attributes_ = text_.size();
}

// Whether the ">" at the end of the text ends the tag: not inside the quotes of a name.
bool DsmlTagReader::AttributesComplete() const {
  if (tag_.closing || tag_.word == DsmlWord::kBlock) return true;
  std::string_view attributes = std::string_view(text_).substr(attributes_);
  attributes.remove_suffix(1);
  attributes = WithoutTrailingSpace(attributes);
  const std::size_t quote = attributes.find('"');
  return quote == std::string_view::npos || (attributes.ends_with('"') && quote + 1 < attributes.size());
}

void DsmlTagReader::End() {
  if (state_ != State::kReading) return;
  if (!word_known_) ReadWord();
  if (state_ == State::kNoTag) return;
  ReadAttributes();
  state_ = State::kComplete;
}

void DsmlTagReader::ReadAttributes() {
  static constexpr std::string_view kName = "name=";
  static constexpr std::string_view kString = "\" string=";
  std::string_view rest = std::string_view(text_).substr(attributes_);
  const std::size_t name = rest.find(kName);
  if (tag_.closing || name == std::string_view::npos) return;
  rest.remove_prefix(name + kName.size());
  if (rest.ends_with('>')) rest.remove_suffix(1);
  rest = WithoutTrailingSpace(rest);
  const std::size_t string = tag_.word == DsmlWord::kParameter ? rest.rfind(kString) : std::string_view::npos;
  if (string != std::string_view::npos) {
    tag_.is_string = rest.substr(string + kString.size()).find("false") == std::string_view::npos;
    rest = rest.substr(0, string + 1);
  }
  if (!rest.starts_with('"')) {
    tag_.name = std::string(rest.substr(0, rest.find(' ')));
    return;
  }
  rest.remove_prefix(1);
  // A quote may be part of the name as long as the tag ends in one; otherwise the closing quote was forgotten.
  tag_.name = std::string(rest.substr(0, rest.ends_with('"') ? rest.size() - 1 : rest.find_first_of("\">\n")));
}

}  // namespace lockstep
