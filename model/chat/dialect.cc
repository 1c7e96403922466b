#include "model/chat/dialect.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "model/chat/json.h"

namespace lockstep {
namespace {

constexpr std::string_view kEffortTextA =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root "
    "cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

constexpr std::string_view kEffortTextB =
    "Reasoning Effort: Beyond maximum \u2014 exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are "
    "certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n";

int EffortNumber(ChatDialect dialect, const ReasoningEffort& effort) {
  const bool pre = dialect == ChatDialect::kV41Pre;
  switch (effort.level) {
    case ReasoningEffort::Level::kLow:
      return pre ? 25 : 50;
    case ReasoningEffort::Level::kHigh:
      return pre ? 50 : 75;
    case ReasoningEffort::Level::kXhigh:
      return 75;
    case ReasoningEffort::Level::kMax:
      return 100;
    case ReasoningEffort::Level::kNumber:
      break;
  }
  if (effort.number < 1 || effort.number > 100) {
    throw RequestError("reasoning_effort",
                       "expected a number from 1 to 100, got " + std::to_string(effort.number));
  }
  return effort.number;
}

std::string_view V4EffortText(ChatDialect dialect, const ReasoningEffort& effort) {
  const bool preview = dialect == ChatDialect::kV4Preview;
  switch (effort.level) {
    case ReasoningEffort::Level::kLow:
      return "";
    case ReasoningEffort::Level::kHigh:
    case ReasoningEffort::Level::kXhigh:
      return preview ? "" : kEffortTextA;
    case ReasoningEffort::Level::kMax:
      return preview ? kEffortTextA : kEffortTextB;
    case ReasoningEffort::Level::kNumber:
      break;
  }
  throw RequestError("reasoning_effort", "expected low, high or max for the dialect " +
                                             std::string(ChatDialectName(dialect)) + ", got " +
                                             std::to_string(effort.number));
}

std::string ReadWhole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<ChatDialect> FromSettingsFile(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json settings = ReadJson(ReadWhole(path), {.root = path.string()});
  if (!settings.is_object()) throw InputError(path.string() + ": expected a JSON object");
  const Json* name = settings.Find("chat_dialect");
  if (name == nullptr) return std::nullopt;
  const std::string where = path.string() + ": chat_dialect";
  if (!name->is_string())
    throw InputError(where + ": expected a string, got " + std::string(JsonKindName(name->kind)));
  return ParseChatDialect(name->text, where);
}

// The scripts differ in the name of a constant (V4) or in the number that "low" stands for (V4.1).
std::optional<ChatDialect> FromBundledScript(std::string_view script) {
  const std::size_t table = script.find("REASONING_EFFORT_MAPPINGS");
  if (table != std::string_view::npos) {
    const std::string_view entries = script.substr(table, script.find('}', table) - table);
    if (entries.find("\"low\": 25") != std::string_view::npos) return ChatDialect::kV41Pre;
    if (entries.find("\"low\": 50") != std::string_view::npos) return ChatDialect::kV41;
    return std::nullopt;
  }
  if (script.find("REASONING_EFFORT_PROMPTS") != std::string_view::npos) return ChatDialect::kV40731;
  if (script.find("REASONING_EFFORT_MAX") != std::string_view::npos) return ChatDialect::kV4Preview;
  return std::nullopt;
}

}  // namespace

std::string_view ChatDialectName(ChatDialect dialect) {
  switch (dialect) {
    case ChatDialect::kV4Preview:
      return "v4-preview";
    case ChatDialect::kV40731:
      return "v4-0731";
    case ChatDialect::kV41Pre:
      return "v4.1-pre";
    case ChatDialect::kV41:
      return "v4.1";
  }
  return "";
}

ChatDialect ParseChatDialect(std::string_view name, const std::string& where) {
  for (const ChatDialect dialect : kAllChatDialects) {
    if (ChatDialectName(dialect) == name) return dialect;
  }
  throw InputError(where + ": expected v4-preview, v4-0731, v4.1-pre or v4.1, got \"" + std::string(name) +
                   "\"");
}

DsmlTags TagsOf(ChatDialect dialect) {
  if (IsV41(dialect)) return {.block = " calls", .invoke = " invoke", .parameter = " parameter"};
  return {.block = "tool_calls", .invoke = "invoke", .parameter = "parameter"};
}

std::string EffortText(ChatDialect dialect, const ReasoningEffort& effort) {
  if (!IsV41(dialect)) return std::string(V4EffortText(dialect, effort));
  return "Reasoning Effort: " + std::to_string(EffortNumber(dialect, effort)) +
         " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
}

ChatDialectSetting LoadChatDialect(const std::string& dir, const Tokenizer& tokenizer) {
  const std::filesystem::path settings = std::filesystem::path(dir) / "lockstep.json";
  if (const auto dialect = FromSettingsFile(settings))
    return {.dialect = *dialect, .source = settings.string()};
  for (const char* name : {"encoding.py", "encoding_dsv41.py", "encoding_dsv4.py"}) {
    const std::filesystem::path script = std::filesystem::path(dir) / "encoding" / name;
    if (!std::filesystem::exists(script)) continue;
    if (const auto dialect = FromBundledScript(ReadWhole(script)))
      return {.dialect = *dialect, .source = script.string()};
  }
  if (tokenizer.SpecialId("<｜System｜>").has_value())
    return {.dialect = ChatDialect::kV41, .source = "tokenizer.json"};
  return {.dialect = ChatDialect::kV40731, .source = "tokenizer.json", .assumed = true};
}

}  // namespace lockstep
