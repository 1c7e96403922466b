// The subcommands of `lockstep`. Each Add function declares one on `app`; its callback runs the command.
#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

void AddGenerate(CLI::App& app);
void AddLogits(CLI::App& app);
void AddTokenize(CLI::App& app);
void AddDetokenize(CLI::App& app);
void AddEncode(CLI::App& app);
void AddInspect(CLI::App& app);
void AddSynth(CLI::App& app);
void AddCheck(CLI::App& app);
void AddBench(CLI::App& app);

}  // namespace lockstep::cli
