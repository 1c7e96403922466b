// lockstep logits: the logits of every position, for comparison with other programs.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine_choice.h"
#include "cli/files.h"
#include "cli/margins.h"
#include "cli/model_source.h"
#include "cli/progress.h"
#include "model/error.h"

namespace lockstep::cli {
namespace {

// Bounds the logits held in memory; the bits do not depend on it.
constexpr std::int64_t kDefaultChunk = 1024;

struct LogitsFlags {
  EngineFlags engine;
  std::string ids;
  std::string out;
  std::string margins;
  double margin_threshold = 1e-3;
  bool compare_truth = false;
};

// An engine over the whole sequence, with its progress on stderr.
class Run {
 public:
  Run(std::shared_ptr<const Checkpoint> checkpoint, const EngineChoice& choice, std::int64_t tokens,
      StepTrace* trace)
      : progress_(choice.Arithmetic(), checkpoint->config.num_layers, tokens, trace),
        engine_(MakeEngine(std::move(checkpoint), choice, &progress_)),
        session_(engine_->NewSession()) {}

  // Logits [T, V] of the next ids[T].
  std::vector<float> Append(std::span<const std::int32_t> ids) {
    return session_->Append(ids, static_cast<std::int64_t>(ids.size()));
  }

 private:
  ProgressTrace progress_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
};

// Only the reference reports its decisions.
EngineFlags OnReference(EngineFlags flags) {
  if (flags.engine == "fast") throw InputError("--margins: needs --engine reference");
  flags.engine = "reference";
  return flags;
}

void CheckFlags(const LogitsFlags& flags) {
  if (flags.out.empty() && flags.margins.empty())
    throw InputError("--out: expected a file to write the logits to");
  if (flags.compare_truth && flags.margins.empty()) {
    throw InputError("--compare-truth: needs --margins FILE.json to report to");
  }
}

void RunLogits(const LogitsFlags& flags) {
  CheckFlags(flags);
  const EngineChoice choice = ChooseEngine(flags.margins.empty() ? flags.engine : OnReference(flags.engine));
  const std::vector<std::int32_t> ids = ReadIds(flags.ids);
  if (ids.empty()) throw InputError(flags.ids + ": expected at least one token id");
  const auto checkpoint = OpenModel(flags.engine.model, choice.engine == "fast");
  CheckIds(ids, 0, checkpoint->config);

  std::optional<OutputFile> out;
  if (!flags.out.empty()) out.emplace(flags.out);
  MarginCollector margins(flags.margin_threshold);
  TruthComparison comparison;
  const auto total = static_cast<std::int64_t>(ids.size());
  Run run(checkpoint, choice, total, flags.margins.empty() ? nullptr : &margins);
  std::optional<Run> truth;
  if (flags.compare_truth) {
    EngineChoice truth_choice = choice;
    truth_choice.truth = true;
    truth.emplace(checkpoint, truth_choice, total, nullptr);
  }

  const auto vocab = static_cast<std::size_t>(checkpoint->config.vocab_size);
  const std::int64_t piece = flags.engine.chunk > 0 ? flags.engine.chunk : kDefaultChunk;
  for (std::int64_t begin = 0; begin < total; begin += piece) {
    const std::int64_t count = std::min(piece, total - begin);
    const std::span<const std::int32_t> chunk(ids.data() + begin, static_cast<std::size_t>(count));
    const std::vector<float> logits = run.Append(chunk);
    if (out) out->WriteFloats(logits);
    if (flags.margins.empty()) continue;
    const std::vector<float> truth_logits = truth ? truth->Append(chunk) : std::vector<float>();
    for (std::int64_t t = 0; t < count; ++t) {
      const std::size_t offset = static_cast<std::size_t>(t) * vocab;
      const std::span<const float> row(logits.data() + offset, vocab);
      margins.OnLogits(begin + t, row);
      if (truth) comparison.OnLogits(begin + t, row, {truth_logits.data() + offset, vocab});
    }
  }
  if (out) out->Commit();
  if (flags.margins.empty()) return;
  nlohmann::ordered_json report = margins.ToJson();
  report["arithmetic"] = choice.Arithmetic();
  if (truth) report["truth"] = comparison.ToJson();
  OutputFile margins_file(flags.margins);
  margins_file.Write(report.dump(1) + "\n");
  margins_file.Commit();
}

}  // namespace

void AddLogits(CLI::App& app) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command = app.add_subcommand("logits", "Logits of every position, row-major float32 little-endian");
  AddEngineFlags(*command, &flags->engine);
  command->add_option("--ids", flags->ids, "JSON file with token ids")->required();
  command->add_option("--out", flags->out, "File for [tokens][vocab] float32");
  command->add_option("--margins", flags->margins, "JSON file for the margins of all decisions");
  command->add_option("--margin-threshold", flags->margin_threshold,
                      "A decision is thin below this share of the compared values' scale");
  command->add_flag("--compare-truth", flags->compare_truth,
                    "Also run truth and add the distance from it to --margins");
  command->callback([flags] { RunLogits(*flags); });
}

}  // namespace lockstep::cli
