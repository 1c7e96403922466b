// lockstep check: the fast engine against the reference, bit for bit, in many configurations.
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/model_source.h"
#include "harness/invariance/check_model.h"
#include "model/checkpoint.h"
#include "model/engine.h"
#include "model/error.h"

namespace lockstep::cli {
namespace {

struct CheckFlags {
  std::string model;
  std::string matrix = "quick";
  std::string device;
  std::string ids;
  std::int64_t tokens = 0;
  std::string golden;
  std::vector<int> only;
};

harness::CheckOptions OptionsOf(const CheckFlags& flags, const ModelConfig& config) {
  harness::CheckOptions options;
  if (flags.matrix != "quick" && flags.matrix != "full") {
    throw InputError("--matrix: unknown matrix '" + flags.matrix + "', expected quick or full");
  }
  options.size = flags.matrix == "full" ? harness::MatrixSize::kFull : harness::MatrixSize::kQuick;
  if (flags.tokens < 0) throw InputError("--tokens: expected at least 1");
  options.prompt_tokens = flags.tokens;
  if (!flags.device.empty()) {
    options.device = kernels::ParseDeviceSpec(flags.device);
    kernels::MakeBackend(*options.device, kernels::DefaultProfile(*options.device));  // a device that is not there is no difference
  }
  if (!flags.ids.empty()) {
    options.prompt = ReadIds(flags.ids);
    if (options.prompt.empty()) throw InputError(flags.ids + ": expected at least one token id");
    CheckIds(options.prompt, 0, config);
  }
  options.golden = flags.golden;
  options.only = flags.only;
  return options;
}

void RunCheck(const CheckFlags& flags) {
  const auto checkpoint = OpenModel(flags.model, /*only_fast=*/false);
  const harness::CheckResult result =
      harness::CheckModel(checkpoint, OptionsOf(flags, checkpoint->config),
                          [](const std::string& line) { std::cout << line << std::endl; });
  if (result.differences > 0) {
    throw CheckFailed(std::to_string(result.differences) + " of " + std::to_string(result.runs) +
                      " configurations differ from the reference");
  }
  std::cout << "all " << result.runs << " configurations equal the reference" << std::endl;
}

}  // namespace

void AddCheck(CLI::App& app) {
  auto flags = std::make_shared<CheckFlags>();
  CLI::App* command = app.add_subcommand("check", "Compare the fast engine with the reference, bit for bit");
  command->add_option("--model", flags->model, "Directory with config.json and safetensors")->required();
  command->add_option("--matrix", flags->matrix,
                      "quick: about a dozen configurations; full: every pair of settings");
  command->add_option("--device", flags->device,
                      "The only device to use; default: pretend CPU devices of all kinds");
  command->add_option("--tokens", flags->tokens,
                      "Length of the made-up prompt; default: past one entry of the largest ratio");
  command->add_option("--ids", flags->ids, "JSON file with the prompt's token ids instead");
  command->add_option("--golden", flags->golden,
                      "Directory with recorded runs (tokens/, digests/) to compare as well");
  command->add_option("--only", flags->only, "Numbers of the configurations to run, as the matrix lists them from 1 on; default: all")->delimiter(',');
  command->callback([flags] { RunCheck(*flags); });
}

}  // namespace lockstep::cli
