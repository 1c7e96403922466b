// The text of a tag after "<｜DSML｜" or "</｜DSML｜", read byte by byte.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

enum class DsmlWord { kBlock, kInvoke, kParameter };

struct DsmlTag {
  DsmlWord word = DsmlWord::kBlock;
  bool closing = false;
  std::optional<std::string> name;  // of an invoke or parameter, if it has one
  bool is_string = true;            // of a parameter; true unless it says string="false"
};

// Reads one tag in either spelling ("invoke", " invoke"), complete at its ">" or where it cannot go on.
class DsmlTagReader {
 public:
  enum class State {
    kReading,
    kComplete,  // tag() is valid
    kNoTag,     // the text is none; text() is all of it
  };

  explicit DsmlTagReader(bool closing) { tag_.closing = closing; }

  // Takes bytes until the state changes; returns how many it took.
  std::size_t Push(std::string_view text);
  // The text ends here because another tag begins: completes a tag whose word is known.
  void End();
  // Takes back a "<" or "</" at the end of the text, which belongs to the next tag; "" if there is none.
  std::string TakeBracket();
  // Whether the text so far can be the beginning of a tag.
  bool MayBecomeTag() const;

  State state() const { return state_; }
  const DsmlTag& tag() const { return tag_; }
  const std::string& text() const { return text_; }

 private:
  bool PushByte(char c);
  void ReadWord();
  bool AttributesComplete() const;
  void ReadAttributes();

  State state_ = State::kReading;
  bool word_known_ = false;
  DsmlTag tag_;
  std::string text_;
  std::size_t attributes_ = 0;  // where they begin in text_
};

}  // namespace lockstep
