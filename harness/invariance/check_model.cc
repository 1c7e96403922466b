#include "harness/invariance/check_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fast/engine.h"
#include "harness/golden/golden.h"
#include "harness/invariance/expectation.h"
#include "harness/invariance/run.h"
#include "model/error.h"

namespace lockstep::harness {
namespace {

void Count(const std::string& name, const std::string& difference, CheckResult* result,
           const std::function<void(const std::string&)>& report) {
  ++result->runs;
  if (!difference.empty()) ++result->differences;
  report(name + ": " + (difference.empty() ? "equal" : "DIFFERS: " + difference));
}

std::string Difference(const std::shared_ptr<const Checkpoint>& checkpoint, const Configuration& configuration,
                       ReferenceRuns& reference, const fast::BackendFactory& make_backend) {
  const auto difference =
      RunConfiguration(checkpoint, configuration, reference.For(configuration.numerics), nullptr, make_backend);
  if (!difference) return "";
  const auto step = Diagnose(checkpoint, configuration, reference, make_backend);
  return (step ? "first at " + step->Describe() + "; " : "steps agree when run again; ") + *difference;
}

// The runs that the reference recorded of a model, by profile; none without --golden.
std::map<Profile, golden::GoldenRun> LoadRecorded(const Checkpoint& checkpoint, const std::string& golden,
                                                  std::optional<Profile> only) {
  std::map<Profile, golden::GoldenRun> recorded;
  if (golden.empty()) return recorded;
  const std::string model = std::filesystem::path(checkpoint.dir + "/").parent_path().filename();
  for (const Profile profile : {Profile::kSm90, Profile::kFma}) {
    if (only && profile != *only) continue;
    recorded[profile] = golden::LoadRun(golden, model, std::string(NameOf(profile)));
  }
  return recorded;
}

// The fast engine against the tokens and digests that the reference recorded.
std::string GoldenDifference(const std::shared_ptr<const Checkpoint>& checkpoint, const CheckOptions& options,
                             Profile profile, const golden::GoldenRun& recorded) {
  fast::EngineOptions engine_options;
  engine_options.device = options.device ? *options.device : kernels::ParseDeviceSpec("cpu");
  engine_options.numerics.profile = profile;
  fast::FastEngine engine(checkpoint, engine_options, options.make_backend);
  return golden::Difference(
      recorded, golden::RunGreedy(engine, golden::LoadPrompt(options.golden), engine_options.chunk_rows));
}

std::vector<std::int32_t> PromptOf(const CheckOptions& options, const ModelConfig& config) {
  if (!options.prompt.empty()) return options.prompt;
  constexpr std::int64_t kLeast = 72, kBeyond = 12;
  const int ratio = *std::max_element(config.compress_ratios.begin(), config.compress_ratios.end());
  const std::int64_t tokens = std::max(kLeast, ratio + kBeyond);
  return MakePrompt(config.vocab_size, options.prompt_tokens > 0 ? options.prompt_tokens : tokens, 1);
}

// The same choices with the one profile that a GPU computes, each once.
std::vector<NumericsOptions> OnOneProfile(const std::vector<NumericsOptions>& all, Profile profile) {
  std::vector<NumericsOptions> kept;
  for (NumericsOptions numerics : all) {
    numerics.profile = profile;
    const auto same = [&](const NumericsOptions& k) {
      return k.fake_quant == numerics.fake_quant && k.act_quant == numerics.act_quant;
    };
    if (std::none_of(kept.begin(), kept.end(), same)) kept.push_back(numerics);
  }
  return kept;
}

// Those that were asked for.
std::vector<Configuration> Chosen(const std::vector<Configuration>& matrix, const std::vector<int>& only) {
  if (only.empty()) return matrix;
  std::vector<Configuration> chosen;
  for (const int line : only) {
    if (line < 1 || line > static_cast<int>(matrix.size())) {
      throw InputError("--only: configuration " + std::to_string(line) + ", expected 1 to " + std::to_string(matrix.size()));
    }
    chosen.push_back(matrix[static_cast<std::size_t>(line - 1)]);
  }
  return chosen;
}

}  // namespace

CheckResult CheckModel(const std::shared_ptr<const Checkpoint>& checkpoint, const CheckOptions& options,
                       const std::function<void(const std::string&)>& report) {
  CheckResult result;
  ReferenceRuns reference(checkpoint, PromptOf(options, checkpoint->config), options.companion_tokens);
  const kernels::DeviceSpec* device = options.device ? &*options.device : nullptr;
  std::optional<Profile> only;  // what a GPU computes
  if (device && device->kind != kernels::DeviceSpec::Kind::kCpu) only = kernels::DefaultProfile(*device);
  // First, so that a wrong directory is refused before the work.
  const std::map<Profile, golden::GoldenRun> recorded = LoadRecorded(*checkpoint, options.golden, only);
  const std::vector<NumericsOptions> arithmetics =
      only ? OnOneProfile(MatrixArithmetics(options.size), *only) : MatrixArithmetics(options.size);
  for (const Configuration& configuration : Chosen(MakeMatrix(options.size, arithmetics, device), options.only)) {
    Count(configuration.Name(), Difference(checkpoint, configuration, reference, options.make_backend), &result,
          report);
  }
  if (!options.only.empty()) return result;
  for (const auto& [profile, run] : recorded) {
    Count("recorded " + std::string(NameOf(profile)), GoldenDifference(checkpoint, options, profile, run),
          &result, report);
  }
  return result;
}

}  // namespace lockstep::harness
