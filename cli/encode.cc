// lockstep encode: the prompt that a chat request becomes.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/prompt.h"
#include "model/text/tokenizer.h"

namespace lockstep::cli {
namespace {

struct EncodeFlags {
  std::string model;
  std::string chat;
  bool json = false;
};

void RunEncode(const EncodeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::FromDirectory(flags.model);
  const EncodedPrompt prompt = EncodeChatFile(flags.chat, flags.model, tokenizer);
  if (flags.json) {
    std::cout << nlohmann::ordered_json{{"text", prompt.text}, {"ids", prompt.ids}}.dump() << "\n";
  } else {
    std::cout << prompt.text << "\n" << nlohmann::json(prompt.ids).dump() << "\n";
  }
}

}  // namespace

void AddEncode(CLI::App& app) {
  auto flags = std::make_shared<EncodeFlags>();
  CLI::App* command = app.add_subcommand("encode", "The prompt of a chat request: its text, then its ids");
  command->add_option("--model", flags->model, "Directory with tokenizer.json")->required();
  command->add_option("--chat", flags->chat, "JSON file with an OpenAI chat request")->required();
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { RunEncode(*flags); });
}

}  // namespace lockstep::cli
