#include "cli/engine_choice.h"

#include <string_view>
#include <utility>

#include "fast/engine.h"
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
  choice->numerics.profile =
      flags.profile.empty() ? kernels::DefaultProfile(choice->device) : ProfileNamed(flags.profile, "--profile");
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

// Truth and the quirk of the published code exist in the reference only.
bool NeedsReference(const EngineFlags& flags) { return flags.arithmetic == "truth" || flags.stale_index_keys; }

fast::Graphs GraphsNamed(const std::string& name) {
  if (name == "auto") return fast::Graphs::kAuto;
  if (name == "on") return fast::Graphs::kOn;
  if (name == "off") return fast::Graphs::kOff;
  throw InputError("--graphs: unknown value '" + name + "', expected auto, on or off");
}

void ChooseBackend(const EngineFlags& flags, EngineChoice* choice) {
  if (!flags.engine.empty() && flags.engine != "fast" && flags.engine != "reference") {
    throw InputError("--engine: unknown engine '" + flags.engine + "', expected fast or reference");
  }
  if (flags.engine == "fast" && NeedsReference(flags)) {
    throw InputError("--engine: --arithmetic truth and --stale-index-keys need --engine reference");
  }
  if (flags.chunk < 0) throw InputError("--chunk: expected a number of tokens of at least 1");
  choice->engine = flags.engine == "reference" || NeedsReference(flags) ? "reference" : "fast";
  if (choice->engine == "reference" && flags.device != "cpu") {
    throw InputError("--device: the reference engine runs on cpu, found '" + flags.device + "'");
  }
  choice->device = kernels::ParseDeviceSpec(flags.device);
  choice->chunk_rows = flags.chunk;
  choice->exact_tail = !flags.no_exact_tail;
  choice->graphs = GraphsNamed(flags.graphs);
}

}  // namespace

void AddEngineFlags(CLI::App& command, EngineFlags* flags) {
  command.add_option("--model", flags->model, "Directory with config.json and safetensors, or synth:SHAPE[,bits=B][,layers=N]..., see lockstep synth")->required();
  command.add_option("--engine", flags->engine, "fast (the default) or reference");
  command.add_option("--device", flags->device,
                     "Where to run: cpu[:N][,mem=64MiB][,isa=avx2][,threads=N], cuda:0, cuda:0,1");
  command.add_option("--chunk", flags->chunk, "Tokens of a prompt processed together (512; on CUDA devices 4096): more run faster, take memory, and let other sessions wait longer");
  command.add_flag("--no-exact-tail", flags->no_exact_tail,
                   "Run every layer for every token of a prompt (V4.1); same bits, more work");
  command.add_option("--graphs", flags->graphs,
                     "Launch decode steps as captured graphs: auto (on CUDA), on or off; same bits");
  command.add_option("--profile", flags->profile, "Contract profile, same as --arithmetic contract:P");
  command.add_option("--arithmetic", flags->arithmetic, "truth, or contract:P; default what the device computes, contract:sm90 on CPUs");
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

fast::EngineOptions FastOptions(const EngineChoice& choice) {
  fast::EngineOptions options;
  options.numerics = choice.numerics;
  options.device = choice.device;
  options.exact_tail = choice.exact_tail;
  options.graphs = choice.graphs;
  // Streamed experts cross the link once a chunk, and a device decodes weights for all its rows at once.
  constexpr std::int64_t kDeviceChunk = 4096;
  if (choice.chunk_rows > 0) options.chunk_rows = choice.chunk_rows;
  else if (choice.device.kind == kernels::DeviceSpec::Kind::kCuda) options.chunk_rows = kDeviceChunk;
  return options;
}

std::unique_ptr<Engine> MakeEngine(std::shared_ptr<const Checkpoint> checkpoint, const EngineChoice& choice,
                                   StepTrace* trace) {
  if (choice.engine == "fast") return std::make_unique<fast::FastEngine>(std::move(checkpoint), FastOptions(choice));
  reference::Options options;
  options.truth = choice.truth;
  options.numerics = choice.numerics;
  options.trace = trace;
  return reference::MakeEngine(std::move(checkpoint), options);
}

}  // namespace lockstep::cli
