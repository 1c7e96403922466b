// lockstep detokenize: ids to text.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/files.h"
#include "model/error.h"
#include "model/text/tokenizer.h"

namespace lockstep::cli {
namespace {

struct DetokenizeFlags {
  std::string model;
  std::string ids;
  bool json = false;
};

void RunDetokenize(const DetokenizeFlags& flags) {
  const std::vector<std::int32_t> ids = ReadIds(flags.ids);
  const Tokenizer tokenizer = Tokenizer::FromDirectory(flags.model);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer.HasToken(ids[i])) continue;
    throw InputError(flags.ids + ": ids[" + std::to_string(i) + "]: the tokenizer has no token " +
                     std::to_string(ids[i]));
  }
  if (flags.json) {
    std::cout << nlohmann::json{{"text", tokenizer.Decode(ids, false)}}.dump() << "\n";
  } else {
    std::cout << tokenizer.DecodeBytes(ids, false);
  }
}

}  // namespace

void AddDetokenize(CLI::App& app) {
  auto flags = std::make_shared<DetokenizeFlags>();
  CLI::App* command =
      app.add_subcommand("detokenize", "Text of token ids, byte for byte and with no newline added");
  command->add_option("--model", flags->model, "Directory with tokenizer.json")->required();
  command->add_option("--ids", flags->ids, "JSON file with token ids")->required();
  command->add_flag("--json", flags->json, "Print one JSON object; bytes that are no UTF-8 become U+FFFD");
  command->callback([flags] { RunDetokenize(*flags); });
}

}  // namespace lockstep::cli
