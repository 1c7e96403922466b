#include "cli/engine_choice.h"

#include <string_view>

#include "cli/version.h"
#include "model/error.h"
#include "reference/engine.h"

namespace lockstep::cli {
namespace {

constexpr std::string_view kContractPrefix = "contract:";
constexpr char kProfileNames[] = "sm90, sm90k8, sm80, sm75, sm70, sm70jit or fma";

Profile ProfileNamed(std::string_view name, const std::string& flag) {
  Profile profile;
  if (!ParseProfile(name, &profile)) {
    throw InputError(flag + ": unknown profile '" + std::string(name) + "', expected " + kProfileNames);
  }
  return profile;
}

void ChooseArithmetic(const EngineFlags& flags, EngineChoice* choice) {
  if (!flags.profile.empty()) choice->numerics.profile = ProfileNamed(flags.profile, "--profile");
  if (flags.arithmetic.empty()) return;
  const std::string_view arithmetic = flags.arithmetic;
  if (arithmetic == "truth") {
    if (!flags.profile.empty()) throw InputError("--profile: has no meaning with --arithmetic truth");
    choice->truth = true;
    return;
  }
  if (!arithmetic.starts_with(kContractPrefix)) {
    throw InputError("--arithmetic: unknown value '" + flags.arithmetic +
                     "', expected truth or contract:P with P one of " + kProfileNames);
  }
  const Profile profile = ProfileNamed(arithmetic.substr(kContractPrefix.size()), "--arithmetic");
  if (!flags.profile.empty() && profile != choice->numerics.profile) {
    throw InputError("--profile: contradicts --arithmetic " + flags.arithmetic);
  }
  choice->numerics.profile = profile;
}

void ChooseBackend(const EngineFlags& flags, EngineChoice* choice) {
  if (flags.engine == "fast") {
    throw InputError("--engine: fast is not part of this build; built are: reference");
  }
  if (!flags.engine.empty() && flags.engine != "reference") {
    throw InputError("--engine: unknown engine '" + flags.engine + "', expected fast or reference");
  }
  choice->engine = "reference";
  if (flags.device != "cpu") {
    throw InputError("--device: the reference engine runs on cpu, found '" + flags.device + "'");
  }
}

}  // namespace

void AddEngineFlags(CLI::App& command, EngineFlags* flags) {
  command.add_option("--model", flags->model, "Directory with config.json and safetensors")->required();
  command.add_option("--engine", flags->engine, "fast or reference; default: fast if it is built");
  command.add_option("--device", flags->device, "Where to run: cpu");
  command.add_option("--profile", flags->profile, "Contract profile, same as --arithmetic contract:P");
  command.add_option("--arithmetic", flags->arithmetic, "truth, or contract:P; default contract:sm90");
  command.add_option("--fake-quant", flags->fake_quant,
                     "official: the model's activation, KV and index quantizers; none: without them");
  command.add_option("--act-quant", flags->act_quant,
                     "Activations of EXL3 mul1 linears: auto, int8, int16 or none");
  command.add_flag("--stale-index-keys", flags->stale_index_keys,
                   "Reproduce the published V4.1 decode code, which scores open groups against old index keys");
}

std::string EngineChoice::Arithmetic() const {
  return truth ? "truth" : std::string(kContractPrefix) + std::string(NameOf(numerics.profile));
}

EngineChoice ChooseEngine(const EngineFlags& flags) {
  EngineChoice choice;
  ChooseBackend(flags, &choice);
  ChooseArithmetic(flags, &choice);
  if (flags.fake_quant != "official" && flags.fake_quant != "none") {
    throw InputError("--fake-quant: unknown value '" + flags.fake_quant + "', expected official or none");
  }
  choice.numerics.fake_quant = flags.fake_quant == "official";
  if (!ParseActQuant(flags.act_quant, &choice.numerics.act_quant)) {
    throw InputError("--act-quant: unknown value '" + flags.act_quant +
                     "', expected auto, int8, int16 or none");
  }
  choice.numerics.stale_index_keys = flags.stale_index_keys;
  return choice;
}

std::unique_ptr<Engine> MakeEngine(std::shared_ptr<const Checkpoint> checkpoint, const EngineChoice& choice,
                                   StepTrace* trace) {
  reference::Options options;
  options.truth = choice.truth;
  options.numerics = choice.numerics;
  options.trace = trace;
  return reference::MakeEngine(std::move(checkpoint), options);
}

}  // namespace lockstep::cli
