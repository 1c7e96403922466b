// lockstep generate: a prompt in, greedy tokens out.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/engine_choice.h"
#include "cli/model_source.h"
#include "cli/files.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "model/error.h"
#include "model/greedy.h"
#include "model/text/stream_decoder.h"
#include "model/text/tokenizer.h"

namespace lockstep::cli {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  PromptFlags prompt;
  std::int64_t max_tokens = 256;
  double temperature = 0;
  bool ignore_eos = false;
  bool json = false;
};

struct Generation {
  std::vector<std::int32_t> ids;  // without the end-of-sequence token
  bool stopped = false;           // at end of sequence, else at the limit
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

class Stopwatch {
 public:
  // Seconds since construction or the last call.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Greedy continuation of `prompt`, at most `limit` tokens; on_token sees each as it is chosen. `eos` -1: none.
Generation Continue(Session& session, std::span<const std::int32_t> prompt, std::int64_t limit,
                    std::int32_t eos, const std::function<void(std::int32_t)>& on_token) {
  Generation generation;
  Stopwatch stopwatch;
  std::vector<float> logits_V = session.Append(prompt, 1);
  generation.prefill_seconds = stopwatch.Lap();
  while (static_cast<std::int64_t>(generation.ids.size()) < limit) {
    const std::int32_t id = ChooseGreedy(logits_V).id;
    generation.stopped = id == eos;
    if (generation.stopped) break;
    generation.ids.push_back(id);
    on_token(id);
    if (static_cast<std::int64_t>(generation.ids.size()) < limit) logits_V = session.Append({&id, 1}, 1);
  }
  generation.decode_seconds = stopwatch.Lap();
  return generation;
}

// Prints tokens as they come: as text, or as ids when the model has no tokenizer.
class Printer {
 public:
  explicit Printer(const Tokenizer* tokenizer) {
    if (tokenizer != nullptr) decoder_.emplace(*tokenizer, true);
  }
  void Print(std::int32_t id) {
    std::cout << (decoder_ ? decoder_->Push(id) : std::to_string(id) + " ") << std::flush;
  }
  void Finish() { std::cout << (decoder_ ? decoder_->Flush() : "") << std::endl; }

 private:
  std::optional<StreamDecoder> decoder_;
};

double PerSecond(std::size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

nlohmann::ordered_json Report(const Generation& generation, std::size_t prompt_tokens,
                              const Tokenizer* tokenizer, const EngineChoice& choice) {
  nlohmann::ordered_json report;
  report["ids"] = generation.ids;
  if (tokenizer != nullptr) report["text"] = tokenizer->Decode(generation.ids, true);
  report["finish_reason"] = generation.stopped ? "stop" : "length";
  report["prompt_tokens"] = prompt_tokens;
  report["engine"] = choice.engine;
  report["arithmetic"] = choice.Arithmetic();
  report["timings"] = {
      {"prefill_seconds", generation.prefill_seconds},
      {"decode_seconds", generation.decode_seconds},
      {"prefill_tokens_per_second", PerSecond(prompt_tokens, generation.prefill_seconds)},
      {"decode_tokens_per_second", PerSecond(generation.ids.size(), generation.decode_seconds)},
  };
  return report;
}

std::optional<Tokenizer> TokenizerOf(const std::string& model) {
  if (!std::filesystem::exists(model + "/tokenizer.json")) return std::nullopt;
  return Tokenizer::FromDirectory(model);
}

void RunGenerate(const GenerateFlags& flags) {
  if (flags.temperature != 0) throw InputError("--temperature: only 0 (greedy) is supported");
  if (flags.max_tokens < 1) throw InputError("--max-tokens: expected at least 1");
  const EngineChoice choice = ChooseEngine(flags.engine);
  CheckPromptFlags(flags.prompt);
  const auto checkpoint = OpenModel(flags.engine.model, choice.engine == "fast");
  const ModelConfig& config = checkpoint->config;
  const std::optional<Tokenizer> tokenizer = TokenizerOf(flags.engine.model);
  const std::vector<std::int32_t> prompt =
      PromptIds(flags.prompt, flags.engine.model, tokenizer ? &*tokenizer : nullptr);
  CheckIds(prompt, 0, config);

  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  // The last token chosen is not processed, so it may lie one beyond the context.
  const std::int64_t limit = std::min(flags.max_tokens, config.max_position_embeddings - prompt_tokens + 1);
  ProgressTrace progress(choice.Arithmetic(), config.num_layers, prompt_tokens, nullptr);
  const std::unique_ptr<Engine> engine = MakeEngine(checkpoint, choice, &progress);
  const std::unique_ptr<Session> session = engine->NewSession();
  Printer printer(tokenizer ? &*tokenizer : nullptr);
  const Generation generation =
      Continue(*session, prompt, limit, flags.ignore_eos ? -1 : config.eos_token_id, [&](std::int32_t id) {
        if (!flags.json) printer.Print(id);
      });
  if (flags.json) {
    std::cout << Report(generation, prompt.size(), tokenizer ? &*tokenizer : nullptr, choice).dump()
              << std::endl;
  } else {
    printer.Finish();
  }
}

}  // namespace

void AddGenerate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  AddEngineFlags(*command, &flags->engine);
  AddPromptFlags(*command, &flags->prompt);
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens to generate");
  command->add_option("--temperature", flags->temperature, "0: the most likely token");
  command->add_flag("--ignore-eos", flags->ignore_eos, "Do not stop at the end-of-sequence token");
  command->add_flag("--json", flags->json, "Print one JSON object at the end");
  command->callback([flags] { RunGenerate(*flags); });
}

}  // namespace lockstep::cli
