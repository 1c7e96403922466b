// The prompt dialects of the DeepSeek-V4 family and how a model directory says which one it speaks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/text/tokenizer.h"

namespace lockstep {

enum class ChatDialect {
  kV4Preview,  // "v4-preview": V4-Flash and V4-Pro of April 2026
  kV40731,     // "v4-0731": V4-Flash-0731
  kV41Pre,     // "v4.1-pre": V4.1-Flash before its effort numbers changed
  kV41,        // "v4.1"
};

inline constexpr ChatDialect kAllChatDialects[] = {ChatDialect::kV4Preview, ChatDialect::kV40731,
                                                   ChatDialect::kV41Pre, ChatDialect::kV41};

std::string_view ChatDialectName(ChatDialect dialect);

// The dialect of that name. Throws InputError that begins with `where` and lists the names.
ChatDialect ParseChatDialect(std::string_view name, const std::string& where);

// Whether the dialect has <｜System｜> headers, spaced tag names and numeric effort.
constexpr bool IsV41(ChatDialect dialect) {
  return dialect == ChatDialect::kV41Pre || dialect == ChatDialect::kV41;
}

// What follows "<｜DSML｜" and "</｜DSML｜" in tool calls.
struct DsmlTags {
  std::string_view block;      // " calls" or "tool_calls"
  std::string_view invoke;     // " invoke" or "invoke"
  std::string_view parameter;  // " parameter" or "parameter"
};
DsmlTags TagsOf(ChatDialect dialect);

// How hard to think: a word, or a number from 1 to 100 (V4.1 only).
struct ReasoningEffort {
  enum class Level { kLow, kHigh, kXhigh, kMax, kNumber };
  Level level = Level::kHigh;
  int number = 0;  // with kNumber
};

// The text that asks for the effort at the head of a thinking prompt, its blank line included; empty where the
// dialect has none. Throws RequestError("reasoning_effort") for a number in a V4 dialect or outside 1..100.
std::string EffortText(ChatDialect dialect, const ReasoningEffort& effort);

struct ChatDialectSetting {
  ChatDialect dialect = ChatDialect::kV41;
  std::string source;    // for logs: where the setting was found
  bool assumed = false;  // nothing in the directory settles it; a caller should say so
};

// The dialect of a model directory: "chat_dialect" in DIR/lockstep.json; else the effort table of the encoder
// script that the checkpoint bundles under DIR/encoding; else by the tokenizer (<｜System｜> is V4.1's alone),
// where V4 is assumed to be v4-0731. Throws InputError for a malformed lockstep.json or an unknown name in it.
ChatDialectSetting LoadChatDialect(const std::string& dir, const Tokenizer& tokenizer);

}  // namespace lockstep
