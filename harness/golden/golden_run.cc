// golden_run: checks the recorded runs of golden/models against the reference; with --update records them. The
// only writer of golden/tokens and of the models' files in golden/digests. Exit codes as `lockstep`: 1 for a
// difference, 2 for bad input.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "harness/golden/golden.h"
#include "model/checkpoint.h"
#include "model/error.h"
#include "reference/engine.h"

namespace lockstep::golden {
namespace {

// Records run in one piece, checks in pieces, so that every check covers both.
constexpr std::int64_t kWholePrompt = 1 << 20;
constexpr std::int64_t kCheckedChunk = 64;

struct Flags {
  std::string golden;
  std::vector<std::string> models;
  std::vector<std::string> profiles = {"sm90", "fma"};
  bool update = false;
};

std::unique_ptr<Engine> OpenReference(const std::string& model_dir, const std::string& profile) {
  reference::Options options;
  if (!ParseProfile(profile, &options.numerics.profile))
    throw InputError("--profile: unknown profile '" + profile + "'");
  return reference::MakeEngine(std::make_shared<const Checkpoint>(OpenCheckpoint(model_dir)), options);
}

// Returns whether the recorded run holds.
bool Handle(const Flags& flags, const std::string& model, const std::string& profile) {
  const std::unique_ptr<Engine> engine = OpenReference(flags.golden + "/models/" + model, profile);
  const std::vector<std::int32_t> prompt = LoadPrompt(flags.golden);
  if (flags.update) {
    SaveRun(flags.golden, model, profile, RunGreedy(*engine, prompt, kWholePrompt));
    std::printf("%s %s: recorded\n", model.c_str(), profile.c_str());
    return true;
  }
  const std::string difference =
      Difference(LoadRun(flags.golden, model, profile), RunGreedy(*engine, prompt, kCheckedChunk));
  std::printf("%s %s: %s\n", model.c_str(), profile.c_str(), difference.empty() ? "equal" : difference.c_str());
  return difference.empty();
}

int Main(int argc, char** argv) {
  CLI::App app{"Checks or records the runs of the models in golden/"};
  Flags flags;
  app.add_option("--golden", flags.golden, "The golden directory")->required();
  app.add_option("--model", flags.models, "Names under golden/models")->required();
  app.add_option("--profile", flags.profiles, "Contract profiles")->capture_default_str();
  app.add_flag("--update", flags.update, "Record instead of check");
  CLI11_PARSE(app, argc, argv);
  try {
    bool all_equal = true;
    for (const std::string& model : flags.models) {
      for (const std::string& profile : flags.profiles) all_equal &= Handle(flags, model, profile);
    }
    return all_equal ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "golden_run: %s\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace lockstep::golden

int main(int argc, char** argv) { return lockstep::golden::Main(argc, argv); }
