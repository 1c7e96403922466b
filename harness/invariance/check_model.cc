#include "harness/invariance/check_model.h"

#include <filesystem>

#include "fast/engine.h"
#include "harness/golden/golden.h"
#include "harness/invariance/expectation.h"
#include "harness/invariance/run.h"

namespace lockstep::harness {
namespace {

void Count(const std::string& name, const std::string& difference, CheckResult* result,
           const std::function<void(const std::string&)>& report) {
  ++result->runs;
  if (!difference.empty()) ++result->differences;
  report(name + ": " + (difference.empty() ? "equal" : "DIFFERS: " + difference));
}

std::string Difference(const std::shared_ptr<const Checkpoint>& checkpoint, const Configuration& configuration,
                       ReferenceRuns& reference) {
  const auto difference =
      RunConfiguration(checkpoint, configuration, reference.For(configuration.numerics), nullptr);
  if (!difference) return "";
  const auto step = Diagnose(checkpoint, configuration, reference);
  return (step ? "first at " + step->Describe() + "; " : "steps agree when run again; ") + *difference;
}

// The fast engine against the tokens and digests that the reference recorded.
std::string GoldenDifference(const std::shared_ptr<const Checkpoint>& checkpoint, const CheckOptions& options,
                             Profile profile) {
  const std::string model = std::filesystem::path(checkpoint->dir + "/").parent_path().filename();
  const golden::GoldenRun recorded = golden::LoadRun(options.golden, model, std::string(NameOf(profile)));
  fast::EngineOptions engine_options;
  engine_options.device = options.device ? *options.device : kernels::ParseDeviceSpec("cpu");
  engine_options.numerics.profile = profile;
  fast::FastEngine engine(checkpoint, engine_options);
  return golden::Difference(
      recorded, golden::RunGreedy(engine, golden::LoadPrompt(options.golden), engine_options.chunk_rows));
}

}  // namespace

CheckResult CheckModel(const std::shared_ptr<const Checkpoint>& checkpoint, const CheckOptions& options,
                       const std::function<void(const std::string&)>& report) {
  CheckResult result;
  const std::vector<std::int32_t> prompt =
      options.prompt.empty() ? MakePrompt(checkpoint->config.vocab_size, options.prompt_tokens, 1)
                             : options.prompt;
  ReferenceRuns reference(checkpoint, prompt, options.companion_tokens);
  const kernels::DeviceSpec* device = options.device ? &*options.device : nullptr;
  for (const Configuration& configuration : MakeMatrix(options.size, MatrixArithmetics(options.size), device)) {
    Count(configuration.Name(), Difference(checkpoint, configuration, reference), &result, report);
  }
  if (options.golden.empty()) return result;
  for (const Profile profile : {Profile::kSm90, Profile::kFma}) {
    Count("recorded " + std::string(NameOf(profile)), GoldenDifference(checkpoint, options, profile), &result,
          report);
  }
  return result;
}

}  // namespace lockstep::harness
