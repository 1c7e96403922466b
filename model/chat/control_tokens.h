// The tokens that structure a prompt and an output, by spelling and by id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/dialect.h"
#include "model/chat/request.h"
#include "model/text/tokenizer.h"

namespace lockstep {

inline constexpr std::string_view kBosText = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosText = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystemText = "<｜System｜>";
inline constexpr std::string_view kUserText = "<｜User｜>";
inline constexpr std::string_view kAssistantText = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminderText = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkText = "<think>";
inline constexpr std::string_view kThinkEndText = "</think>";
inline constexpr std::string_view kDsmlText = "｜DSML｜";
inline constexpr std::string_view kFimBeginText = "<｜fim▁begin｜>";
inline constexpr std::string_view kFimHoleText = "<｜fim▁hole｜>";
inline constexpr std::string_view kFimEndText = "<｜fim▁end｜>";

// Marks that an assistant may write into its visible text (grounding); tokens in its history, text for the
// client.
inline constexpr std::string_view kGroundingTexts[] = {"<｜ref｜>",     "<｜/ref｜>",    "<｜box｜>",
                                                       "<｜/box｜>",    "<｜point｜>",   "<｜/point｜>",
                                                       "<｜polygon｜>", "<｜/polygon｜>"};

std::string_view TaskText(ChatTask task);

// The official id of a structural token.
struct OfficialToken {
  std::string_view text;
  std::int32_t id;
};
// All structural tokens of the dialect with their ids in the official vocabulary of 129,280.
std::vector<OfficialToken> OfficialTokens(ChatDialect dialect);

// What a token of the output means to the parser.
enum class ControlKind {
  kNone,      // ordinary text, grounding marks included
  kThink,     // <think>
  kThinkEnd,  // </think>
  kDsml,      // ｜DSML｜
  kEos,
  kHidden,  // another structural or special token: never shown to a client
};

// The control tokens of a tokenizer.
class ControlTokens {
 public:
  // Throws InputError naming the first structural token that the tokenizer does not have.
  static ControlTokens Of(const Tokenizer& tokenizer, ChatDialect dialect);

  std::int32_t eos() const { return eos_; }
  ControlKind KindOf(std::int32_t id) const;

 private:
  std::int32_t eos_ = -1;
  std::int32_t think_ = -1;
  std::int32_t think_end_ = -1;
  std::int32_t dsml_ = -1;
  std::vector<std::int32_t> hidden_;  // sorted
};

}  // namespace lockstep
