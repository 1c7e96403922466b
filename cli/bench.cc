// lockstep bench: how fast an engine is, each figure beside what limits it.
#include "harness/bench/bench.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine_choice.h"
#include "cli/model_source.h"
#include "model/error.h"

namespace lockstep::cli {
namespace {

using bench::Figure;
using nlohmann::ordered_json;

struct BenchFlags {
  EngineFlags engine;
  std::vector<std::int64_t> tokens, contexts;
  std::int64_t prefix = 0;
  std::int64_t batch = 1;
  int steps = 16;
  std::uint64_t seed = 1;
  bool profile_steps = false;
  bool json = false;
};

double TokensPerSecond(const Figure& figure) { return static_cast<double>(figure.tokens) / figure.seconds; }

ordered_json Describe(const bench::OpTime& time) {
  return {{"op", time.op}, {"detail", time.detail}, {"calls", time.calls}, {"seconds", time.seconds}};
}

ordered_json Describe(const Figure& figure) {
  ordered_json json{{"what", figure.what},
                    {"context", figure.context},
                    {"tokens", figure.tokens},
                    {"seconds", figure.seconds},
                    {"tokens_per_second", TokensPerSecond(figure)},
                    {"limit_seconds", figure.limit.seconds},
                    {"limit", figure.limit.bound},
                    {"of_limit", figure.limit.seconds / figure.seconds},
                    {"expert_bytes_copied", figure.stats.experts.bytes_copied},
                    {"picks_resident", figure.stats.experts.picks_resident},
                    {"picks_streamed", figure.stats.experts.picks_streamed},
                    {"picks_cpu", figure.stats.experts.picks_cpu},
                    {"token_layers", figure.stats.token_layers}};
  if (figure.profile.empty()) return json;
  json["profiled_seconds"] = figure.profiled_seconds;
  json["attention_share"] = bench::ShareOf(figure, "attention");
  json["indexer_share"] = bench::ShareOf(figure, "index_select");
  for (const bench::OpTime& time : figure.profile) json["profile"].push_back(Describe(time));
  return json;
}

ordered_json Describe(const bench::Rates& rates) {
  return {{"read_bytes_per_second", rates.read_bytes},
          {"copy_in_bytes_per_second", rates.copy_in_bytes},
          {"mma_flops_per_second", rates.mma_flops},
          {"mul1_weights_per_second", rates.mul1_weights},
          {"mcg_weights_per_second", rates.mcg_weights}};
}

void PrintProfile(const Figure& figure) {
  double device = 0;
  std::int64_t calls = 0;
  for (const bench::OpTime& time : figure.profile) device += time.seconds, calls += time.calls;
  const double per = 1e3 / static_cast<double>(figure.steps);
  std::printf("  %-18s %-26s %10s %12s %10s %7s\n", "operation", "", "calls", "ms", "us a call", "share");
  for (const bench::OpTime& time : figure.profile) {
    std::printf("  %-18s %-26s %10.1f %12.3f %10.1f %6.1f%%\n", time.op.c_str(), time.detail.c_str(),
                static_cast<double>(time.calls) / static_cast<double>(figure.steps), time.seconds * per,
                time.seconds * 1e6 / static_cast<double>(time.calls), 100 * time.seconds / device);
  }
  std::printf("  %-18s %-26s %10.1f %12.3f, of %.3f ms with timing on, %.3f ms without\n", "all", "",
              static_cast<double>(calls) / static_cast<double>(figure.steps), device * per, figure.profiled_seconds * per, figure.seconds * 1e3);
  std::printf("  attention %.1f %%, index selection %.1f %%\n", 100 * bench::ShareOf(figure, "attention"),
              100 * bench::ShareOf(figure, "index_select"));
}

void Print(const Figure& figure) {
  std::printf("%s of %lld at %lld: %.3f ms, %.1f tok/s; limit %.3f ms (%s), %.1f tok/s; %.1f %% of the limit\n", figure.what.c_str(),
              static_cast<long long>(figure.tokens), static_cast<long long>(figure.context), figure.seconds * 1e3, TokensPerSecond(figure),
              figure.limit.seconds * 1e3, figure.limit.bound, static_cast<double>(figure.tokens) / figure.limit.seconds,
              100 * figure.limit.seconds / figure.seconds);
  const fast::ExpertStats& experts = figure.stats.experts;
  if (experts.picks_streamed + experts.picks_cpu > 0) {
    std::printf("  picks: %lld resident, %lld streamed, %lld on the CPU; %.2f GB copied\n", static_cast<long long>(experts.picks_resident),
                static_cast<long long>(experts.picks_streamed), static_cast<long long>(experts.picks_cpu),
                static_cast<double>(experts.bytes_copied) * 1e-9);
  }
  if (!figure.profile.empty()) PrintProfile(figure);
  std::fflush(stdout);
}

void PrintHeader(const BenchFlags& flags, const bench::Bench& bench) {
  const bench::Rates& r = bench.rates();
  std::printf("%s on %s: loaded in %.1f s, %.2f GB of device memory\n", flags.engine.model.c_str(), bench.Device().c_str(), bench.load_seconds(),
              static_cast<double>(bench.device_bytes()) * 1e-9);
  std::printf("rates: memory %.0f GB/s, copy in %.1f GB/s", r.read_bytes * 1e-9, r.copy_in_bytes * 1e-9);
  if (r.mma_flops > 0) {
    std::printf(", bf16 %.0f TFLOP/s, decoding mul1 %.2f and mcg %.2f T weights/s", r.mma_flops * 1e-12, r.mul1_weights * 1e-12,
                r.mcg_weights * 1e-12);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void ExpectPositive(const std::vector<std::int64_t>& values, const char* flag) {
  for (const std::int64_t value : values) {
    if (value < 1) throw InputError(std::string(flag) + ": expected numbers of at least 1");
  }
}

// Runs `measure` for each of `sizes`, of which the longest sequence has `longest` tokens; `flag` says so many.
void RunBench(const BenchFlags& flags, const char* flag, const std::vector<std::int64_t>& sizes, std::int64_t longest,
              const std::function<Figure(bench::Bench&, std::int64_t)>& measure) {
  const EngineChoice choice = ChooseEngine(flags.engine);
  if (choice.engine != "fast") throw InputError("--engine: bench measures the fast engine");
  const auto checkpoint = OpenModel(flags.engine.model, /*only_fast=*/true);
  if (longest > checkpoint->config.max_position_embeddings) {
    throw InputError(std::string(flag) + ": the longest sequence would have " + std::to_string(longest) + " tokens, the model has " +
                     std::to_string(checkpoint->config.max_position_embeddings));
  }
  bench::BenchOptions options;
  options.engine = FastOptions(choice);
  options.max_context = longest;
  options.decode_steps = flags.steps;
  options.profile_steps = flags.profile_steps;
  options.seed = flags.seed;
  bench::Bench bench(checkpoint, options);
  ordered_json report{{"model", flags.engine.model}, {"device", bench.Device()}, {"load_seconds", bench.load_seconds()},
                      {"device_bytes", bench.device_bytes()}, {"rates", Describe(bench.rates())}, {"figures", ordered_json::array()}};
  if (!flags.json) PrintHeader(flags, bench);
  for (const std::int64_t size : sizes) {
    const Figure figure = measure(bench, size);
    report["figures"].push_back(Describe(figure));
    if (!flags.json) Print(figure);
  }
  if (flags.json) std::cout << report.dump() << std::endl;
}

void RunPrompts(const BenchFlags& flags) {
  ExpectPositive(flags.tokens, "--tokens");
  if (flags.prefix < 0) throw InputError("--prefix: expected at least 0");
  std::int64_t longest = 0;
  for (const std::int64_t tokens : flags.tokens) longest = std::max(longest, flags.prefix + tokens);
  RunBench(flags, flags.prefix > 0 ? "--prefix, --tokens" : "--tokens", flags.tokens, longest, [&](bench::Bench& bench, std::int64_t tokens) { return bench.Prompt(flags.prefix, tokens); });
}

void RunDecode(const BenchFlags& flags) {
  ExpectPositive(flags.contexts, "--context");
  ExpectPositive({flags.batch}, "--batch");
  ExpectPositive({flags.steps}, "--steps");
  constexpr std::int64_t kOtherSteps = 16;  // warm-up
  std::int64_t longest = 0;
  for (const std::int64_t context : flags.contexts) longest = std::max(longest, context + 2 * flags.steps + kOtherSteps);
  RunBench(flags, "--context", flags.contexts, longest, [&](bench::Bench& bench, std::int64_t context) { return bench.Decode(context, flags.batch); });
}

CLI::Option* AddList(CLI::App& command, const char* name, std::vector<std::int64_t>* values, const char* text) {
  return command.add_option(name, *values, text)->delimiter(',')->capture_default_str();
}

}  // namespace

void AddBench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "Measure prefill, suffixes and decode, each figure beside its limit");
  command->require_subcommand(1);
  command->fallthrough();
  AddEngineFlags(*command, &flags->engine);
  command->add_flag("--profile-steps", flags->profile_steps, "Run again with every operation timed, and print where the time goes");
  command->add_option("--seed", flags->seed, "Of the random tokens and of made-up state");
  command->add_flag("--json", flags->json, "Print one JSON object");

  CLI::App* prefill = command->add_subcommand("prefill", "Read prompts of random tokens");
  flags->tokens = {8192};
  AddList(*prefill, "--tokens", &flags->tokens, "Lengths");
  prefill->callback([flags] { RunPrompts(*flags); });

  CLI::App* suffix = command->add_subcommand("suffix", "Read prompts of random tokens after a made-up prefix");
  AddList(*suffix, "--tokens", &flags->tokens, "Lengths");
  suffix->add_option("--prefix", flags->prefix, "Tokens of the prefix")->required();
  suffix->callback([flags] { RunPrompts(*flags); });

  CLI::App* decode = command->add_subcommand("decode", "Steps of one token a sequence at made-up contexts");
  flags->contexts = {4096};
  AddList(*decode, "--context", &flags->contexts, "Tokens before the step");
  decode->add_option("--batch", flags->batch, "Sequences decoded together")->capture_default_str();
  decode->add_option("--steps", flags->steps, "Steps timed")->capture_default_str();
  decode->callback([flags] { RunDecode(*flags); });
}

}  // namespace lockstep::cli
