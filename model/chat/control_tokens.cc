#include "model/chat/control_tokens.h"

#include <algorithm>
#include <optional>

namespace lockstep {
namespace {

struct TaskEntry {
  ChatTask task;
  OfficialToken token;
};

constexpr TaskEntry kTaskTokens[] = {
    {ChatTask::kAction, {"<｜action｜>", 128829}},       {ChatTask::kQuery, {"<｜query｜>", 128830}},
    {ChatTask::kAuthority, {"<｜authority｜>", 128831}}, {ChatTask::kDomain, {"<｜domain｜>", 128832}},
    {ChatTask::kTitle, {"<｜title｜>", 128836}},         {ChatTask::kReadUrl, {"<｜read_url｜>", 128845}},
};

constexpr OfficialToken kSharedTokens[] = {
    {kBosText, 0},           {kEosText, 1},       {kFimHoleText, 128800},        {kFimBeginText, 128801},
    {kFimEndText, 128802},   {kUserText, 128803}, {kAssistantText, 128804},      {kThinkText, 128821},
    {kThinkEndText, 128822}, {kDsmlText, 128825}, {kLatestReminderText, 128828},
};

bool IsGrounding(std::string_view text) {
  return std::find(std::begin(kGroundingTexts), std::end(kGroundingTexts), text) != std::end(kGroundingTexts);
}

}  // namespace

std::string_view TaskText(ChatTask task) {
  for (const TaskEntry& entry : kTaskTokens) {
    if (entry.task == task) return entry.token.text;
  }
  return "";
}

std::vector<OfficialToken> OfficialTokens(ChatDialect dialect) {
  std::vector<OfficialToken> tokens(std::begin(kSharedTokens), std::end(kSharedTokens));
  for (const TaskEntry& entry : kTaskTokens) tokens.push_back(entry.token);
  if (IsV41(dialect)) tokens.push_back({kSystemText, 128799});
  return tokens;
}

ControlTokens ControlTokens::Of(const Tokenizer& tokenizer, ChatDialect dialect) {
  ControlTokens tokens;
  for (const OfficialToken& official : OfficialTokens(dialect)) {
    const std::optional<std::int32_t> id = tokenizer.SpecialId(official.text);
    if (!id) {
      throw InputError("tokenizer.json: added_tokens: expected " + std::string(official.text) +
                       " for the chat dialect " + std::string(ChatDialectName(dialect)));
    }
    tokens.hidden_.push_back(*id);
  }
  tokens.eos_ = *tokenizer.SpecialId(kEosText);
  tokens.think_ = *tokenizer.SpecialId(kThinkText);
  tokens.think_end_ = *tokenizer.SpecialId(kThinkEndText);
  tokens.dsml_ = *tokenizer.SpecialId(kDsmlText);
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsSpecial(id) && !IsGrounding(tokenizer.TokenBytes(id))) tokens.hidden_.push_back(id);
  }
  std::sort(tokens.hidden_.begin(), tokens.hidden_.end());
  return tokens;
}

ControlKind ControlTokens::KindOf(std::int32_t id) const {
  if (id == dsml_) return ControlKind::kDsml;
  if (id == think_) return ControlKind::kThink;
  if (id == think_end_) return ControlKind::kThinkEnd;
  if (id == eos_) return ControlKind::kEos;
  return std::binary_search(hidden_.begin(), hidden_.end(), id) ? ControlKind::kHidden : ControlKind::kNone;
}

}  // namespace lockstep
