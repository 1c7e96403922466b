// A byte-level tokenizer with all control tokens, small enough to be made in a test.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/text/tokenizer.h"

namespace lockstep {

// The 256 bytes, a few merges that cross the edges of tool markup ("</", ">\n", "\n\n", "\n\n<") and of emoji,
// and every control token. Made once.
const Tokenizer& SmallChatTokenizer();

// The text of its tokenizer.json, with `renames` = {old, new} applied to added tokens.
std::string SmallChatTokenizerJson(const std::vector<std::pair<std::string, std::string>>& renames = {});

}  // namespace lockstep
