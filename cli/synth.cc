// lockstep synth: checkpoints with random weights.
#include "harness/synth/synth.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/model_source.h"
#include "fast/engine.h"
#include "harness/synth/memory_checkpoint.h"
#include "model/error.h"

namespace lockstep::cli {
namespace {

struct SynthFlags {
  synth::SynthOptions options;
  std::string shape;
  std::string out;
  bool memory = false;
  std::string device = "cpu";
};

// Loads the model into a device's memory, says how large it is and how to name it, and lets it go.
void RunInMemory(const SynthFlags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string name = synth::SynthName(flags.options);
  fast::EngineOptions options;
  options.device = kernels::ParseDeviceSpec(flags.device);
  options.max_context = 4096;
  const std::int64_t bytes = fast::FastEngine(OpenModel(name, /*only_fast=*/true), options).device_bytes();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%s: %.2f GB in device memory in %.1f s\n", name.c_str(), static_cast<double>(bytes) * 1e-9, seconds);
}

void RunSynth(SynthFlags flags) {
  flags.options.shape = synth::ParseShape(flags.shape, "--shape");
  if (flags.memory != flags.out.empty()) throw InputError("--out, --memory: expected one of them");
  if (flags.memory && !flags.options.tokenizer.empty()) throw InputError("--tokenizer: a model in memory has none");
  if (flags.memory) return RunInMemory(flags);
  synth::WriteCheckpoint(flags.options, flags.out, [](std::int64_t written, std::int64_t total) {
    constexpr double kMiB = 1 << 20;
    std::fprintf(stderr, "lockstep: synth: %.1f of %.1f MiB\n", static_cast<double>(written) / kMiB,
                 static_cast<double>(total) / kMiB);
  });
}

}  // namespace

void AddSynth(CLI::App& app) {
  auto flags = std::make_shared<SynthFlags>();
  synth::SynthOptions* options = &flags->options;
  CLI::App* command = app.add_subcommand("synth", "Write a checkpoint with seeded random weights");
  command->add_option("--shape", flags->shape, "v4.1-flash, v4-flash, tiny-v41 or tiny-v4")->required();
  command
      ->add_option(
          "--bits", options->bits,
          "native (FP8, FP4, BF16), 2.9 (the published EXL3 pack's layout), mixed (a rate for each matrix), "
          "or the rate of the routed experts: 1, 1.5, 2, 2.5, 3, 3.5, 4 to 8")
      ->capture_default_str();
  command->add_option("--codebook", options->codebook, "EXL3 codebook: mul1, mcg, 3inst or mixed")
      ->capture_default_str();
  command->add_option("--layers", options->shape_options.layers,
                      "Cut the depth, keeping the plan in proportion");
  command->add_option("--engram-base", options->shape_options.engram_base,
                      "Rows of each Engram bucket, about; 0: no Engram; 16000000: the published size, 190 GiB");
  command
      ->add_option("--routing-skew", options->routing_skew,
                   "Share of expert picks that the more popular half of the experts gets, 0.5 to 0.99")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Any number; the same one gives the same bytes")
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer,
                      "tokenizer.json to copy; the model takes its vocabulary");
  command->add_option("--shard-bytes", options->shard_bytes, "Largest file, but for one tensor")
      ->capture_default_str();
  command->add_option("--out", flags->out, "Directory to make");
  command->add_flag("--memory", flags->memory,
                    "Make the model in the memory of --device, without files. Other commands do so for a model named "
                    "synth:SHAPE[,bits=B][,codebook=C][,layers=N][,seed=S][,skew=P][,engram=ROWS]");
  command->add_option("--device", flags->device, "With --memory: where")->capture_default_str();
  command->callback([flags] { RunSynth(*flags); });
}

}  // namespace lockstep::cli
