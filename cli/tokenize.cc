// lockstep tokenize: text to ids, in the form that --ids reads.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/files.h"
#include "model/error.h"
#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

namespace lockstep::cli {
namespace {

struct TokenizeFlags {
  std::string model;
  std::optional<std::string> text;
  std::string file;
  bool special = false;
  bool json = false;
};

void RunTokenize(const TokenizeFlags& flags) {
  if (flags.text.has_value() != flags.file.empty())
    throw InputError("--text, --file: expected exactly one of them");
  const Tokenizer tokenizer = Tokenizer::FromDirectory(flags.model);
  const std::string text = flags.text ? *flags.text : ReadFile(flags.file);
  RequireUtf8(text, flags.text ? "--text" : flags.file);
  const nlohmann::json ids = tokenizer.Encode(text, flags.special);
  std::cout << (flags.json ? nlohmann::json{{"ids", ids}} : ids).dump() << "\n";
}

}  // namespace

void AddTokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Token ids of a text; no BOS is added");
  command->add_option("--model", flags->model, "Directory with tokenizer.json")->required();
  command->add_option("--text", flags->text, "The text");
  command->add_option("--file", flags->file, "File with the text");
  command->add_flag("--special", flags->special, "Control tokens written in the text become their ids");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { RunTokenize(*flags); });
}

}  // namespace lockstep::cli
