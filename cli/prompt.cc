#include "cli/prompt.h"

#include "cli/files.h"
#include "model/chat/encoder.h"
#include "model/chat/prompt.h"
#include "model/error.h"

namespace lockstep::cli {

void AddPromptFlags(CLI::App& command, PromptFlags* flags) {
  command.add_option("--prompt", flags->prompt, "Text to continue, control tokens in it included");
  command.add_option("--ids", flags->ids, "JSON file with token ids to continue");
  command.add_option("--chat", flags->chat, "JSON file with an OpenAI chat request to answer");
}

void CheckPromptFlags(const PromptFlags& flags) {
  const int given = (flags.prompt ? 1 : 0) + (flags.ids.empty() ? 0 : 1) + (flags.chat.empty() ? 0 : 1);
  if (given != 1) throw InputError("--prompt, --ids, --chat: expected exactly one of them");
}

EncodedPrompt EncodeChatFile(const std::string& path, const std::string& model, const Tokenizer& tokenizer) {
  const std::string body = ReadFile(path);
  const ChatDialectSetting setting = LoadChatDialect(model, tokenizer);
  try {
    return EncodeChat(ParseChatRequest(body), setting.dialect, tokenizer);
  } catch (const RequestError& error) {
    throw InputError(path + ": " + error.what());
  }
}

std::vector<std::int32_t> PromptIds(const PromptFlags& flags, const std::string& model,
                                    const Tokenizer* tokenizer) {
  if (!flags.ids.empty()) {
    std::vector<std::int32_t> ids = ReadIds(flags.ids);
    if (ids.empty()) throw InputError(flags.ids + ": expected at least one token id");
    return ids;
  }
  if (tokenizer == nullptr) {
    throw InputError(std::string(flags.prompt ? "--prompt" : "--chat") + ": needs " + model +
                     "/tokenizer.json, which does not exist");
  }
  if (flags.prompt) return EncodeRawPrompt(*flags.prompt, *tokenizer).ids;
  return EncodeChatFile(flags.chat, model, *tokenizer).ids;
}

}  // namespace lockstep::cli
