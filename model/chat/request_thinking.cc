#include "model/chat/request_thinking.h"

#include <optional>
#include <string_view>

namespace lockstep {
namespace {

using Level = ReasoningEffort::Level;

// What one field says; either part may be left open.
struct Wish {
  std::optional<bool> on;
  std::optional<ReasoningEffort> effort;
};

struct EffortWord {
  std::string_view word;
  std::optional<bool> on;
  std::optional<Level> level;
};

constexpr EffortWord kEffortWords[] = {
    {"none", false, {}},
    {"off", false, {}},
    {"false", false, {}},
    {"disabled", false, {}},
    {"minimal", true, Level::kLow},
    {"low", true, Level::kLow},
    {"medium", true, Level::kHigh},
    {"high", true, Level::kHigh},
    {"xhigh", true, Level::kXhigh},
    {"max", true, Level::kMax},
    {"ultra", true, Level::kMax},
    {"auto", {}, {}},
    {"default", {}, {}},
};

constexpr std::string_view kEffortExpectation =
    "none, minimal, low, medium, high, xhigh, max, ultra, auto or a number from 1 to 100";

std::optional<int> EffortNumber(const Json& value) {
  if (value.kind != Json::Kind::kNumber || value.text.size() > 3) return std::nullopt;
  int number = 0;
  for (const char c : value.text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + (c - '0');
  }
  if (number < 1 || number > 100) return std::nullopt;
  return number;
}

Wish ReadEffort(const JsonField& field) {
  if (!field.present()) return {};
  const Json& value = field.value();
  if (value.kind == Json::Kind::kBool) return {.on = value.boolean};
  if (const auto number = EffortNumber(value)) {
    return {.on = true, .effort = ReasoningEffort{.level = Level::kNumber, .number = *number}};
  }
  if (value.is_string()) {
    for (const EffortWord& word : kEffortWords) {
      if (word.word != value.text) continue;
      Wish wish{.on = word.on};
      if (word.level) wish.effort = ReasoningEffort{.level = *word.level};
      return wish;
    }
  }
  field.FailExpected(kEffortExpectation);
}

Wish FirstEffort(const JsonField& body) {
  for (const JsonField& field :
       {body["reasoning_effort"], body["reasoning"]["effort"], body["output_config"]["effort"]}) {
    if (field.present()) return ReadEffort(field);
  }
  return {};
}

std::optional<bool> ReadThinkingField(const JsonField& field) {
  if (!field.present()) return std::nullopt;
  if (field.value().kind == Json::Kind::kBool) return field.value().boolean;
  field.AsObject();
  const JsonField type = field["type"];
  if (!type.present()) return std::nullopt;
  const std::string& name = type.AsString();
  if (name == "enabled" || name == "adaptive") return true;
  if (name == "disabled") return false;
  if (name == "auto") return std::nullopt;
  type.FailExpected("enabled, disabled, adaptive or auto");
}

std::optional<bool> ReadMode(const JsonField& field) {
  if (!field.present()) return std::nullopt;
  const std::string& name = field.AsString();
  if (name == "thinking") return true;
  if (name == "chat") return false;
  field.FailExpected("thinking or chat");
}

Wish ReadTemplateArguments(const JsonField& body) {
  const JsonField arguments = body["chat_template_kwargs"];
  if (arguments.present()) arguments.AsObject();
  Wish wish = ReadEffort(arguments["reasoning_effort"]);
  for (const JsonField& field :
       {body["enable_thinking"], arguments["enable_thinking"], arguments["thinking"]}) {
    if (field.present()) wish.on = field.AsBool();
  }
  if (const auto mode = ReadMode(arguments["thinking_mode"])) wish.on = mode;
  return wish;
}

}  // namespace

ThinkingChoice ReadThinking(const JsonField& body) {
  const std::optional<bool> explicit_switch = ReadThinkingField(body["thinking"]);
  const Wish effort = FirstEffort(body);
  const Wish arguments = ReadTemplateArguments(body);
  ThinkingChoice choice;
  if (explicit_switch) {
    choice.on = *explicit_switch;
  } else if (effort.on) {
    choice.on = *effort.on;
  } else if (arguments.on) {
    choice.on = *arguments.on;
  }
  if (effort.effort) {
    choice.effort = *effort.effort;
  } else if (arguments.effort) {
    choice.effort = *arguments.effort;
  }
  return choice;
}

}  // namespace lockstep
