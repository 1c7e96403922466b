// Ids in, text out, one id at a time.
#pragma once

#include <cstdint>
#include <string>

#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

namespace lockstep {

// Joined outputs, Flush included, equal Tokenizer::Decode of all ids. Never stalls: at most three bytes are
// held back, and only while they may still become a character. The tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // Text that became certain with this id; may be empty.
  std::string Push(std::int32_t id) {
    if (skip_special_ && tokenizer_->IsSpecial(id)) return {};
    return utf8_.Push(tokenizer_->TokenBytes(id));
  }
  std::string Flush() { return utf8_.Flush(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream utf8_;
};

}  // namespace lockstep
