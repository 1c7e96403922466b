// Whether tokenizer, dialect and model directory fit together; run when a model is loaded.
#pragma once

#include <string>

#include "model/chat/dialect.h"
#include "model/text/tokenizer.h"

namespace lockstep {

// What was checked, for the log.
struct ChatSelfTestReport {
  bool official_ids = false;  // the vocabulary has the official size, so ids were compared
  int goldens = 0;
  int replayed = 0;  // cases of DIR/encoding/tests
  int left_out = 0;  // cases with images
  int round_trips = 0;
};

// Checks, in this order: every structural token of the dialect exists, with its official id if the vocabulary
// has the official size; known prompts encode to their ids and decode to their bytes (official size only); the
// cases of DIR/encoding/tests render to the bytes there; an answer that is rendered and parsed, in many splits,
// comes back as it was. Throws InputError that names the token, golden or file.
ChatSelfTestReport RunChatSelfTest(const Tokenizer& tokenizer, ChatDialect dialect, const std::string& dir);

}  // namespace lockstep
