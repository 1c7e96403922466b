// every_split: prefill of [0, split), then decode, against decode alone, at every split of a sequence of the
// committed models. One line a model, profile and choice of quantizers; exits with 1 for a difference.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model/error.h"
#include "reference/testing/decoded_sequence.h"
#include "reference/testing/sequence_models.h"

namespace lockstep::reference {
namespace {

// Tests of one case that threads may share; every one has splits from short to long.
constexpr std::size_t kParts = 16;

struct Flags {
  std::vector<std::string> profiles = {"sm90"};
  std::vector<std::string> models = {"oracles", "golden"};
  std::int64_t tokens = 300;
  bool without_quantizers = false;
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
};

struct Case {
  ModelFiles model;
  Options options;
  std::optional<DecodedSequence> decoded;
  std::atomic<std::size_t> different = 0;
  std::string first;  // under the mutex of Check

  std::string Name() const {
    return model.name + " " + std::string(NameOf(options.numerics.profile)) + " fake-quant " +
           (options.numerics.fake_quant ? "official" : "none");
  }
};

// Calls work(0) to work(count - 1) on all threads; the first exception is thrown again at the end.
void InParallel(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t) workers.emplace_back(run);
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
}

std::vector<Profile> ProfilesOf(const Flags& flags) {
  std::vector<Profile> profiles;
  for (const std::string& name : flags.profiles) {
    Profile profile;
    if (name == "all") return {std::begin(kAllProfiles), std::end(kAllProfiles)};
    if (!ParseProfile(name, &profile)) throw InputError("--profile: unknown profile '" + name + "'");
    profiles.push_back(profile);
  }
  return profiles;
}

// The models that a name stands for: "oracles", "golden", or one of either.
std::vector<ModelFiles> ModelsNamed(const std::string& name) {
  if (name == "oracles") return OracleModels();
  if (name == "golden") return GoldenModels();
  for (const auto* models : {&OracleModels(), &GoldenModels()}) {
    for (const ModelFiles& model : *models) {
      if (model.name == name) return {model};
    }
  }
  throw InputError("--model: expected oracles, golden or a model of theirs, found '" + name + "'");
}

// All cases of one profile, in the order of their lines.
std::vector<std::unique_ptr<Case>> CasesOf(const Flags& flags, Profile profile) {
  std::vector<std::unique_ptr<Case>> cases;
  const auto add = [&](const ModelFiles& model, bool fake_quant) {
    cases.push_back(std::make_unique<Case>());
    cases.back()->model = model;
    cases.back()->options.numerics.profile = profile;
    cases.back()->options.numerics.fake_quant = fake_quant;
  };
  for (const std::string& name : flags.models) {
    for (const ModelFiles& model : ModelsNamed(name)) {
      add(model, true);
      if (flags.without_quantizers) add(model, false);
    }
  }
  return cases;
}

// Returns the number of splits that differ.
std::size_t CheckProfile(const Flags& flags, Profile profile) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::unique_ptr<Case>> cases = CasesOf(flags, profile);
  InParallel(flags.threads, cases.size(), [&](std::size_t i) {
    cases[i]->decoded.emplace(cases[i]->model, cases[i]->options, flags.tokens);
  });
  std::mutex mutex;
  InParallel(flags.threads, cases.size() * kParts, [&](std::size_t i) {
    Case& c = *cases[i / kParts];
    DecodedSequence sequence = c.decoded->Twin();
    for (std::size_t split = 1 + i % kParts; split <= sequence.tokens(); split += kParts) {
      const testing::AssertionResult same = sequence.WholePrefillIsSame(split);
      if (same) continue;
      ++c.different;
      const std::lock_guard lock(mutex);
      if (c.first.empty()) c.first = "split " + std::to_string(split) + ": " + same.message();
    }
  });
  std::size_t different = 0;
  for (const auto& c : cases) {
    std::printf("%s: %zu splits, %zu differ%s%s\n", c->Name().c_str(), c->decoded->tokens(),
                c->different.load(), c->first.empty() ? "" : "; ", c->first.c_str());
    different += c->different;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%s: %.1f s on %u threads\n", std::string(NameOf(profile)).c_str(), seconds, flags.threads);
  std::fflush(stdout);
  return different;
}

int Main(int argc, char** argv) {
  CLI::App app{"Prefill to every split of a sequence, then decode, against decode alone"};
  Flags flags;
  app.add_option("--profile", flags.profiles, "Contract profiles, or all")->capture_default_str();
  app.add_option("--model", flags.models, "oracles, golden, or a name as in the lines")->capture_default_str();
  app.add_option("--tokens", flags.tokens, "Length of the sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--without-quantizers", flags.without_quantizers, "Also --fake-quant none");
  app.add_option("--threads", flags.threads, "Threads")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    std::size_t different = 0;
    for (const Profile profile : ProfilesOf(flags)) different += CheckProfile(flags, profile);
    return different == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "every_split: %s\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace lockstep::reference

int main(int argc, char** argv) { return lockstep::reference::Main(argc, argv); }
